"""A sound scheme of a user's own, and the same broken in one way each: what the conformance checks must find."""

import torch
from torch import nn
from transformers import initialization as init

from hf_posenc import PositionScheme


class Sound(PositionScheme):
    """A learned bias per clipped distance and head."""

    shift_invariant = True

    def __init__(self, *, num_heads, reach=4):
        super().__init__()
        self.reach = reach
        self.table = nn.Embedding(2 * reach + 1, num_heads)

    def distance(self, positions):
        return (positions[:, None, :] - positions[:, :, None]).clamp(-self.reach, self.reach) + self.reach

    def bias(self, tokens):
        return self.table(self.distance(tokens.positions)).permute(0, 3, 1, 2)


class SoundWaves(PositionScheme):
    """A projected sine of the position, added."""

    def __init__(self, *, hidden_size):
        super().__init__()
        self.out = nn.Linear(1, hidden_size)

    def wave(self, positions):
        return positions.float().unsqueeze(-1).sin()

    def embed(self, x, tokens):
        return x + self.out(self.wave(tokens.positions).to(x.dtype)).to(x.dtype)


class SoundDraw(SoundWaves):
    """Waves that the constructor draws as wide as it likes, by what a model draws them with, too."""

    def __init__(self, *, hidden_size):
        super().__init__(hidden_size=hidden_size)
        self.init_weights(hidden_size**-0.5)

    def init_weights(self, std):
        init.normal_(self.out.weight, std=std)


class SoundSharpWaves(SoundWaves):
    """Waves whose frequency is learned, and at far places moves them by whole turns."""

    def __init__(self, *, hidden_size):
        super().__init__(hidden_size=hidden_size)
        self.frequency = nn.Embedding(1, 1)

    def wave(self, positions):
        frequency = self.frequency(torch.zeros_like(positions[:1, :1])).float()
        return (20 * torch.pi * frequency * positions.float().unsqueeze(-1)).sin()


class SoundTurn(PositionScheme):
    """Queries and keys turned by learned frequencies."""

    shift_invariant = True

    def __init__(self, *, head_dim):
        super().__init__()
        self.frequencies = nn.Embedding(1, head_dim // 2)

    def rotary(self, tokens):
        frequencies = self.frequencies(torch.zeros(1, dtype=torch.int64)).float()
        return tokens.positions[..., None, None].float() * frequencies

    def rotate(self, q, k, state, layer):
        cos, sin = torch.cat((state, state), -1).cos(), torch.cat((-state, state), -1).sin()
        return tuple((t * cos + t.roll(t.shape[-1] // 2, -1) * sin).to(t.dtype) for t in (q, k))


class SoundWindow(PositionScheme):
    """Each layer sees farther: a bias of its own, -inf past its window."""

    shift_invariant = True

    def distance(self, positions):
        return (positions[:, None, :] - positions[:, :, None]).abs()[:, None]

    def layer_bias(self, q, k, tokens, layer):
        far = self.distance(tokens.positions)
        return (-far / (layer + 1)).masked_fill(far > 3 * layer + 3, -torch.inf)


class PositionalArguments(Sound):
    def __init__(self, num_heads, reach=4):
        super().__init__(num_heads=num_heads, reach=reach)


class TupleDefault(Sound):
    def __init__(self, *, num_heads, reach=(4, 5)):
        super().__init__(num_heads=num_heads, reach=max(reach))


class HooksThatTakeLess(Sound):
    def init_weights(self):
        pass


class UnknownSize(Sound):
    def __init__(self, *, width):
        super().__init__(num_heads=width)


class Float64Embeddings(SoundWaves):
    def embed(self, x, tokens):
        return super().embed(x, tokens).double()


class HalfPrecisionAngles(SoundTurn):
    def rotary(self, tokens):
        return super().rotary(tokens).bfloat16()


class FirstPlaceOfTheRow(Sound):
    """Takes the first place for the first token: wrong with padding on the left and in packed rows."""

    def bias(self, tokens):
        bias = super().bias(tokens)
        return bias + (torch.arange(bias.shape[-1], device=bias.device) == 0)


class FirstTokenOfTheRow(FirstPlaceOfTheRow):
    """Takes the first token of a row for the first of each sequence: wrong in packed rows."""

    def bias(self, tokens):
        first = tokens.is_first & (tokens.is_first.cumsum(-1) == 1)
        return Sound.bias(self, tokens) + first[:, None, None, :]


class PlacesForPositions(Sound):
    """Uses the place in the row as the position."""

    def distance(self, positions):
        return super().distance(torch.arange(positions.shape[-1], device=positions.device)[None])


class ConstantVector(SoundWaves):
    def wave(self, positions):
        return torch.ones(*positions.shape, 1, device=positions.device)


class SeesOrder(SoundWaves):
    order_blind = True


class SeesShift(SoundWaves):
    shift_invariant = True


class SeesNoShift(Sound):
    shift_invariant = False


class NotItself(Sound):
    """No token attends to itself: one alone attends to nothing."""

    def bias(self, tokens):
        itself = torch.eye(tokens.positions.shape[-1], device=tokens.positions.device).bool()
        return super().bias(tokens).masked_fill(itself, -torch.inf)


class UnusedWeights(Sound):
    def __init__(self, *, num_heads):
        super().__init__(num_heads=num_heads)
        self.spare = nn.Linear(2, 2)


class ZeroTimesWeights(UnusedWeights):
    def bias(self, tokens):
        nothing = torch.zeros(2, dtype=self.spare.weight.dtype, device=tokens.positions.device)
        return super().bias(tokens) + 0 * self.spare(nothing).sum()


class InfiniteSlope(Sound):
    """sqrt has no slope at distance 0."""

    def bias(self, tokens):
        far = (tokens.positions[:, None, :] - tokens.positions[:, :, None]).abs()
        return super().bias(tokens) - (far[..., None] * self.table(far * 0)).abs().sqrt().permute(0, 3, 1, 2)


class BackwardGradient(Sound):
    """A .detach() in the wrong place turns the gradient around."""

    def bias(self, tokens):
        bias = super().bias(tokens)
        return 2 * bias.detach() - bias


class KeptTable(Sound):
    """Computes the bias of each position once, and keeps it with its graph."""

    kept = None

    def __init__(self, *, num_heads):
        super().__init__(num_heads=num_heads)
        self.down = nn.Linear(num_heads, num_heads)

    def bias(self, tokens):
        if self.kept is None or not self.kept.requires_grad:
            self.kept = self.down(self.table(torch.arange(2 * self.reach + 1, device=tokens.positions.device)).tanh())
        return nn.functional.embedding(self.distance(tokens.positions), self.kept).permute(0, 3, 1, 2)


class SoundStateInADictionary(SoundTurn):
    def rotary(self, tokens):
        return {"angle": [super().rotary(tokens), None]}

    def rotate(self, q, k, state, layer):
        return super().rotate(q, k, state["angle"][0], layer)


class UsedUp(SoundTurn):
    """Its state serves each layer once, and checkpointing runs layers again."""

    def __init__(self, *, head_dim, num_layers):
        super().__init__(head_dim=head_dim)
        self.num_layers = num_layers

    def rotary(self, tokens):
        self.left = [super().rotary(tokens)] * self.num_layers

    def rotate(self, q, k, state, layer):
        return super().rotate(q, k, self.left.pop(), layer)


class Random(Sound):
    def bias(self, tokens):
        bias = super().bias(tokens)
        return bias + torch.randn_like(bias)


class ChangesPositions(SoundWaves):
    def embed(self, x, tokens):
        tokens.positions.mul_(2)
        return super().embed(x, tokens)


class ChangesEmbeddings(SoundWaves):
    def embed(self, x, tokens):
        x += self.out(self.wave(tokens.positions).to(x.dtype))
        return x


class ChangesQueries(SoundTurn):
    def rotate(self, q, k, state, layer):
        turned, k = super().rotate(q, k, state, layer)
        return q.copy_(turned), k


class SeedsInAHook(SoundWaves):
    def embed(self, x, tokens):
        torch.manual_seed(0)
        return super().embed(x, tokens)


class StaleTable(Sound):
    """Keeps what its weights gave at the first evaluation."""

    def home(self):
        return vars(self)

    def bias(self, tokens):
        if self.training:
            return super().bias(tokens)
        if "kept" not in self.home():
            self.home()["kept"] = self.table(torch.arange(2 * self.reach + 1, device=tokens.positions.device)).detach()
        return nn.functional.embedding(self.distance(tokens.positions), self.home()["kept"]).permute(0, 3, 1, 2)


class StaleTableOfTheModule(StaleTable):
    """Keeps it for all models of the process."""

    def home(self):
        return _KEPT


_KEPT = {}


class RunningMean(SoundWaves):
    """Takes the mean of the last batch that it was trained on from all embeddings."""

    mean = 0.0

    def embed(self, x, tokens):
        if self.training:
            self.mean = x.detach().flatten(0, -2).mean(0)
        return super().embed(x - self.mean, tokens)


class SetInTheConstructor(Sound):
    def __init__(self, *, num_heads):
        super().__init__(num_heads=num_heads)
        with torch.no_grad():
            self.table.weight.zero_()


class DrawnInTheConstructor(Sound):
    def __init__(self, *, num_heads):
        super().__init__(num_heads=num_heads)
        nn.init.normal_(self.table.weight, std=3.0)


class FourHeads(Sound):
    """Made for the size that its author tried."""

    def __init__(self):
        super().__init__(num_heads=4)


class ThreeHeads(Sound):
    def bias(self, tokens):
        return super().bias(tokens)[:, :3]


class LateBuffer(Sound):
    def bias(self, tokens):
        if not hasattr(self, "offset"):
            self.register_buffer("offset", torch.tensor(0.5), persistent=False)
        return super().bias(tokens) + self.offset


class OwnParameter(Sound):
    def __init__(self, *, num_heads):
        super().__init__(num_heads=num_heads)
        self.slope = nn.Parameter(torch.ones(()))

    def bias(self, tokens):
        return super().bias(tokens) * self.slope


class WeightWithoutItsModule(Sound):
    def bias(self, tokens):
        return self.table.weight[self.distance(tokens.positions)].permute(0, 3, 1, 2)


class ReadsAChildsSize(Sound):
    def bias(self, tokens):
        return super().bias(tokens) * (self.table.num_embeddings / 9)


class TensorFromTheConstructor(Sound):
    def __init__(self, *, num_heads):
        super().__init__(num_heads=num_heads)
        self.slopes = torch.tensor([0.5**head for head in range(num_heads)])[:, None, None]

    def bias(self, tokens):
        return super().bias(tokens) * self.slopes


class WritesOverLoadedWeights(Sound):
    def init_weights(self, std):
        self.table.weight.data = torch.randn(self.table.weight.shape)


class PositionsInHalfPrecision(SoundWaves):
    def wave(self, positions):
        return positions.to(self.out.weight.dtype).unsqueeze(-1).sin().float()


class OtherInHalfPrecision(SoundWaves):
    def wave(self, positions):
        return super().wave(positions) * (1 if self.out.weight.dtype == torch.float32 else 3)


class BranchOnData(Sound):
    def bias(self, tokens):
        if int(tokens.positions.max()) > 10**6:
            raise ValueError("too far")
        return super().bias(tokens)


class ConstantsOnTheCPU(SoundWaves):
    def wave(self, positions):
        return super().wave(positions) * torch.tensor([0.5])


class SumsInHalfPrecision(Sound):
    """Counts tokens in what autocast makes of a product."""

    def layer_bias(self, q, k, tokens, layer):
        before = tokens.positions[:, None] <= tokens.positions[:, :, None]
        before = (before & (tokens.sequence[:, None] == tokens.sequence[:, :, None])).float()
        place = torch.matmul(before, before.new_full((before.shape[-1], 1), 1.01)).float()
        return -(place.mT - place).abs().unsqueeze(1)


class OneTooFew(SoundWaves):
    """Counts one position more than the table has."""

    def __init__(self, *, hidden_size, max_positions):
        super().__init__(hidden_size=hidden_size)
        self.table = nn.Embedding(max_positions, 1)
        self.max_length = max_positions + 1

    def wave(self, positions):
        return super().wave(positions) + self.table(positions).float()


class TableWithoutLimit(OneTooFew):
    def __init__(self, *, hidden_size, max_positions):
        super().__init__(hidden_size=hidden_size, max_positions=max_positions)
        self.max_length = None


class BiasWithoutEffect(SoundWaves):
    """A bias that is equal for all keys: softmax doesn't see it."""

    def bias(self, tokens):
        return tokens.positions[:, None, :, None].float().expand(-1, -1, -1, tokens.positions.shape[-1])


class StateForNobody(SoundWaves):
    def rotary(self, tokens):
        return tokens.positions.float()
