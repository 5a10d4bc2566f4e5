"""Sums of charges and of budgets as decimals, which PostgreSQL keeps exactly."""

from decimal import Decimal
from fractions import Fraction

from service.privacy.accounting.composition import PrivacyLoss


def decimal(amount: Fraction) -> Decimal:
    """Exact: sums of binary doubles and of decimals have nothing but twos and fives below the line."""
    twos = (amount.denominator & -amount.denominator).bit_length() - 1
    fives, rest = 0, amount.denominator >> twos
    while rest > 1:
        rest, left = divmod(rest, 5)
        if left:
            raise ValueError("not a sum of binary doubles and decimals")
        fives += 1
    power = max(twos, fives)
    return Decimal(f"{amount.numerator * 2 ** (power - twos) * 5 ** (power - fives)}E-{power}")


def decimals(loss: PrivacyLoss) -> tuple[Decimal, Decimal, Decimal]:
    """Return ε, δ and ρ, exactly."""
    return decimal(loss.epsilon), decimal(loss.delta), decimal(loss.rho)
