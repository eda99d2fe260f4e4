"""What does not go together in a federated round, each refused by name with the reason."""

from typing import Literal

from ..conf.errors import ConfigError
from .client import ClientRule
from .compress import Compressor, Dense
from .joining import Joining
from .participation import Participation
from .privacy import Privacy
from .secure import Secure


def check_hidden(
    privacy: Privacy | None,
    secure: Secure | None,
    joining: Joining,
    compress: Compressor,
    client: ClientRule,
    participation: Participation,
) -> None:
    """Clients that noise hides (`privacy`), or whose changes are masked (`secure`). Raises `ConfigError`."""
    if privacy is None and secure is None:
        return
    by = "secure" if privacy is None else "privacy"
    if privacy is not None and not joining.streaming:
        raise ConfigError(
            "privacy, aggregate: noise hides a client in the sum of all clients' changes, and in nothing else that is "
            "made of them; choose aggregate=mean and an attack whose workers know nothing of others, or privacy=none"
        )
    if secure is not None and not joining.streaming:
        raise ConfigError(
            "secure, aggregate: robust rules compare what clients bring, and attacks that collude know it, which "
            "nobody sees where the server learns the sum alone; choose aggregate=mean and an attack whose workers "
            "know nothing of others, or secure=none"
        )
    if secure is not None and not isinstance(compress, Dense):
        raise ConfigError(
            "secure, compress: masked numbers are added up as they are, and look like noise; choose compress=none, "
            "or secure=none"
        )
    if client.controls or client.counts:
        raise ConfigError(
            f"client, {by}: this rule's clients deliver more than their weights, which is neither clipped nor "
            f"masked; choose client=plain or fedprox, or {by}=none"
        )
    if (key := _not_all_alike(participation)) is not None:
        raise ConfigError(
            f"{key}, {by}: what is promised holds for clients that are drawn all alike and stay; choose "
            f"sync.sampling=uniform and sync.dropout=0, or {by}=none"
        )


def check_in_turn(
    clients: int,
    momentum: Literal["kept", "reset"],
    privacy: Privacy | None,
    secure: Secure | None,
    joining: Joining,
    compress: Compressor,
    client: ClientRule,
    participation: Participation,
) -> None:
    """More clients than workers: what there is one of for each client is not kept. Raises `ConfigError`."""
    given = f"sync.clients={clients}"
    if momentum == "kept":
        raise ConfigError(
            f"sync.momentum=kept: with {given} a worker trains one client after another, and keeps no optimizer of "
            "each; choose sync.momentum=reset"
        )
    if not client.plain:
        raise ConfigError(
            f"client, sync: with {given} a worker trains one client after another, and keeps nothing of each; "
            "choose client=plain, or sync.clients=null"
        )
    if (key := _not_all_alike(participation)) is not None:
        raise ConfigError(
            f"{key}: with {given} all that are drawn, each as likely as another, come to the end of a round; "
            "choose sync.sampling=uniform and sync.dropout=0, or sync.clients=null"
        )
    if privacy is not None or secure is not None:
        by = "secure" if privacy is None else "privacy"
        raise ConfigError(
            f"{by}, sync: with {given} a worker sends what its clients make together, where each client's change "
            f"would have to be hidden; choose {by}=none, or sync.clients=null"
        )
    if not isinstance(compress, Dense):
        raise ConfigError(
            f"compress, sync: with {given} a worker sends what its clients make together, and a message would be "
            "made of each client's change; choose compress=none, or sync.clients=null"
        )
    if not joining.plain:
        by, usual = ("attack", "none") if joining.aggregate.traits.streaming else ("aggregate", "mean")
        raise ConfigError(
            f"{by}, sync: with {given} a worker sends what its clients make together, and the server never has the "
            f"change of each; choose {by}={usual}, or sync.clients=null"
        )


def _not_all_alike(participation: Participation) -> str | None:
    """The key that says so."""
    if participation.dropout > 0:
        return f"sync.dropout={participation.dropout:g}"
    return "sync.sampling=weighted" if participation.sampling == "weighted" else None
