from tests.support.training_fixtures import _own_world, _quick, checkpoint, computed_in, order  # noqa: F401
