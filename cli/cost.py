"""`paceline cost`: what training takes, in days, dollars and kilowatt hours."""

import typer

from .cost_buy import buy
from .cost_days import days
from .cost_energy import energy
from .cost_spot import spot
from .options import Help

cost = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_help_option=False)
cost.command()(days)
cost.command()(buy)
cost.command()(spot)
cost.command()(energy)


@cost.callback()
def questions(help: Help = False) -> None:
    """What training takes, in days, dollars and kilowatt hours; nothing is trained.

    Each answer shows its formula and every input, with where it came from.

    \b
    paceline cost days --parameters 175B --tokens 300B --devices 1024 --flops 140T
    paceline cost buy --devices 8 --flops 19.5T --occupancy 50% --owning 55534 --renting 143544
    paceline cost spot --time 500h --between 24h --checkpoint 5min --restart 10min
    paceline cost energy --time 34d --devices 1024 --card a100
    """
