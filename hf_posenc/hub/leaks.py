"""Finds access tokens in files before they become public."""

import re
from collections.abc import Iterator
from pathlib import Path

from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.plugins.discord import DiscordBotTokenDetector
from detect_secrets.plugins.github_token import GitHubTokenDetector
from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
from detect_secrets.plugins.jwt import JwtTokenDetector
from detect_secrets.plugins.mailchimp import MailchimpDetector
from detect_secrets.plugins.npm import NpmDetector
from detect_secrets.plugins.openai import OpenAIDetector
from detect_secrets.plugins.private_key import PrivateKeyDetector
from detect_secrets.plugins.pypi_token import PypiTokenDetector
from detect_secrets.plugins.sendgrid import SendGridDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.stripe import StripeDetector
from detect_secrets.plugins.telegram_token import TelegramBotTokenDetector
from detect_secrets.plugins.twilio import TwilioKeyDetector


class _OtherTokens(RegexBasedDetector):
    """Access tokens that detect_secrets doesn't know."""

    secret_type = "Hugging Face, GitHub, Anthropic, Google or OpenAI"
    denylist = (
        re.compile(r"(?<![A-Za-z0-9])(?:hf_|hf_oauth_|api_org_)[A-Za-z0-9]{30,}"),
        re.compile(r"github_pat_\w{22,}"),
        re.compile(r"sk-(?:ant|proj|svcacct|admin)-[\w-]{20,}"),
        re.compile(r"(?<![\w-])AIza[\w-]{35}(?![\w-])"),
    )


# Only tokens with a fixed prefix: detectors of passwords and random strings also match vocabularies.
_DETECTORS = (
    *(_OtherTokens(), AWSKeyDetector(), AzureStorageKeyDetector(), DiscordBotTokenDetector(), GitHubTokenDetector()),
    *(GitLabTokenDetector(), JwtTokenDetector(), MailchimpDetector(), NpmDetector(), OpenAIDetector()),
    *(PrivateKeyDetector(), PypiTokenDetector(), SendGridDetector(), SlackDetector(), SquareOAuthDetector()),
    *(StripeDetector(), TelegramBotTokenDetector(), TwilioKeyDetector()),
)
_ESCAPED = re.compile(r"\\(?:U000000|u00|x)([0-7][0-9a-fA-F])")
_MARKDOWN = re.compile(r"\\([_-])")


def leak(path: Path, secret: str | None) -> str | None:
    r"""The service whose access token a file seems to hold, or None.

    Tokens are also found in UTF-16 and UTF-32, and escaped as `\u0068`, `\x68` or Markdown's `\_`. Of a safetensors
    file, only the header is read.

    Args:
        path: the file.
        secret: a token to find whatever its form.
    """
    for text in _readings(path):
        if secret and secret in text:
            return "the one in use"
        for detector in _DETECTORS:
            if next(iter(detector.analyze_string(text)), None) is not None:
                return str(detector.secret_type)
    return None


def _readings(path: Path) -> Iterator[str]:
    """The readings of a file's text: as it is, without null bytes, unescaped; each once."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little") if path.suffix == ".safetensors" else -1
        content = file.read(length) if length >= 0 else path.read_bytes()
    plain = content.decode("utf-8", "replace")
    wide = content.replace(b"\0", b"").decode("utf-8", "replace")
    escaped = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), wide)
    yield from dict.fromkeys((plain, wide, escaped, _MARKDOWN.sub(r"\1", escaped)))
