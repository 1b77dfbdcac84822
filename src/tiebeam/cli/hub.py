"""The `config.json` of a repository on the Hugging Face hub, or one clear refusal."""

import sys
from pathlib import Path
from typing import Any

from tiebeam.errors import TargetError


def config_file(name: str) -> Path:
    """Fetch the config of `org/name`, with an optional `@revision`; from the cache where the hub does not answer.

    The client retries a download for half a minute, with a line for each try. So the hub is asked once first
    whether it is there (`HF_HUB_ETAG_TIMEOUT` says for how long, ten seconds by default).

    Raises:
        TargetError: No such repository, or neither the hub nor the cache has it.
    """
    repository, _, revision = name.partition("@")
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as e:
        raise TargetError("hf: targets need huggingface_hub", hint="pip install 'tiebeam[transformers]'") from e
    where: dict[str, Any] = {"repo_id": repository, "filename": "config.json", "revision": revision or None}
    try:
        silence = _silence()
        if silence is None:
            silence = _ask(huggingface_hub.hf_hub_url(**where))
        return Path(huggingface_hub.hf_hub_download(**where, local_files_only=silence is not None))
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as e:
        raise TargetError(
            f"'hf:{name}' is not in the local cache and the hub cannot be reached",
            got=_first_line(silence or e),
            hint="check the network, HF_ENDPOINT and HF_HUB_OFFLINE, or name a folder with its config.json",
        ) from (silence or e)
    except errors.HFValidationError as e:
        raise TargetError(f"'hf:{name}' names no repository", got=_first_line(e), expected="hf:org/name") from e
    except (errors.HfHubHTTPError, OSError) as e:
        raise TargetError(
            f"the config of 'hf:{name}' cannot be fetched",
            got=_first_line(e),
            hint="check the name; a gated repository needs a login",
        ) from e


def _silence() -> Exception | None:
    """Why the hub is not to be asked at all, if it is not."""
    from huggingface_hub import constants, errors

    return errors.OfflineModeIsEnabled("HF_HUB_OFFLINE is set") if constants.HF_HUB_OFFLINE else None


def _ask(url: str) -> Exception | None:
    """What stands between here and the hub; None where it answers, be it with a refusal (which is raised)."""
    from huggingface_hub import errors, get_hf_file_metadata

    try:
        get_hf_file_metadata(url)
    except errors.HfHubHTTPError as e:
        if getattr(e.response, "status_code", 500) < 500:
            raise
        return e
    except _unanswered() as e:
        return e
    return None


def _unanswered() -> tuple[type[Exception], ...]:
    """What the client raises where nothing answers: its HTTP library is another in each major version."""
    libraries = (sys.modules.get(name) for name in ("httpx2", "httpx"))
    return (OSError, *(library.TransportError for library in libraries if library is not None))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
