#!/usr/bin/env python
"""A classifier behind HTTP; texts that arrive within a few milliseconds of each other are answered in one batch.

pip install -e ".[export,serve]"
python examples/serving/server.py runs/mine-openvino --port 8000
curl localhost:8000/predict -H 'Content-Type: application/json' -d '{"inputs": ["A text to classify."]}'
"""

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from hf_posenc.data.columns import as_input
from hf_posenc.data.reading import refuse_surrogates
from hf_posenc.errors import UserError, run_script
from hf_posenc.finetuning.prediction import Asked, Classifier, answers_to, load_classifier
from hf_posenc.inference.windows import Windows

MOST = 1000  # texts in a request
EXPECTED = (
    f'Send {{"inputs": [...]}} with 1 to {MOST} texts, or pairs of texts: ["a text", ["a text", "its pair"]], or texts '
    'by column: [{"subject": "a text", "body": "another"}].'
)


class Question(BaseModel, extra="forbid"):
    """What is sent to /predict."""

    inputs: Annotated[list[str | tuple[str, str] | dict[str, str]], Field(min_length=1, max_length=MOST)]


def of_text(number: int, error: Exception) -> Exception:
    """The error of a text, by its number in the request."""
    return UserError(f"Text {number}: {error}") if isinstance(error, UserError) else error


def in_words(error: Exception) -> str:
    """A sentence that says why a request is refused, and what is accepted."""
    if isinstance(error, UserError):
        return str(error)
    if not isinstance(error, RequestValidationError):
        return f"The body is no JSON in UTF-8. {EXPECTED}"
    unknown = [part["loc"][-1] for part in error.errors() if part["type"] == "extra_forbidden"]
    return f"{unknown[0]!r} is unknown. {EXPECTED}" if unknown else EXPECTED


def make_app(classifier: Classifier, asked: Asked, wait: float = 0.003) -> FastAPI:
    """The application; `wait` is how many seconds the first text of a batch waits for others."""
    waiting: asyncio.Queue[tuple[tuple[str, ...], asyncio.Future[Any]]] = asyncio.Queue()
    counts = {"texts": 0, "empty": 0, "batches": 0}

    def answer(texts: list[tuple[str, ...]]) -> list[Any]:
        long: dict[int, int] = {}
        try:
            answers = list(answers_to(classifier, texts, asked, long=long))
            return [
                (row, number in long and asked.windows is None, long.get(number, 1))
                for number, row in enumerate(answers)
            ]
        except Exception as error:  # of one text: the others get their answers
            return [error] if len(texts) == 1 else [row for text in texts for row in answer([text])]

    async def answer_in_batches() -> None:
        while True:
            batch = [await waiting.get()]
            await asyncio.sleep(wait)
            while len(batch) < asked.batch_size and not waiting.empty():
                batch.append(waiting.get_nowait())
            answers = await asyncio.to_thread(answer, [text for text, _ in batch])
            counts.update(texts=counts["texts"] + len(batch), batches=counts["batches"] + 1)
            for (_, future), own in zip(batch, answers, strict=True):
                if not future.done():  # whoever asked may have left
                    future.set_exception(own) if isinstance(own, Exception) else future.set_result(own)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(answer_in_batches())
        yield
        task.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/predict")
    async def label(question: Question) -> dict[str, list[Any]]:
        texts = []
        for number, item in enumerate(question.inputs):
            try:
                texts.append(as_input(item, classifier.known.columns))  # as those that it was trained on
            except UserError as error:
                raise of_text(number, error) from error
        refuse_surrogates((f"Text {row}", cell) for row, cells in enumerate(texts) for cell in cells)
        futures = [asyncio.get_running_loop().create_future() for _ in texts]
        for item in zip(texts, futures, strict=True):
            waiting.put_nowait(item)
        answered = await asyncio.gather(*futures, return_exceptions=True)
        for number, result in enumerate(answered):
            if isinstance(result, Exception):
                raise of_text(number, result)
        answers, truncated, windows = zip(*answered, strict=True)
        empty = [not all(map(str.strip, text)) for text in texts]
        counts["empty"] += sum(empty)
        return {"answers": [*answers], "truncated": [*truncated], "windows": [*windows], "empty": empty}

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"backend": classifier.backend, **counts}

    @app.exception_handler(UserError)
    @app.exception_handler(RequestValidationError)
    @app.exception_handler(400)  # a body that can't be decoded
    async def refuse(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": in_words(error)}, 422)

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a checkpoint, or what hf-posenc export wrote")
    parser.add_argument("--backend", help="torch, onnx or openvino; default: as of hf-posenc predict")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--windows", choices=("mean", "max"), help="read longer texts in windows; default: cut them")
    parser.add_argument("--stride", type=int, help="tokens from a window to the next; default: half a window")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    classifier = load_classifier(options.checkpoint, backend=options.backend)
    asked = Asked(batch_size=options.batch_size, windows=Windows.of(options.windows, options.stride))
    list(answers_to(classifier, [], asked))  # what the model can't be asked shows now
    uvicorn.run(make_app(classifier, asked), host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    run_script(main)
