"""Settings keep their bounds and defaults, and proofs their constants, unless somebody changes them knowingly."""

from tests.docs import golden


def test_settings_have_the_bounds_and_defaults_that_they_had() -> None:
    assert golden.settings().splitlines() == golden.SETTINGS.read_text().splitlines(), "python -m tests.docs.golden"


def test_proofs_have_the_constants_that_they_had() -> None:
    assert golden.constants().splitlines() == golden.CONSTANTS.read_text().splitlines(), "python -m tests.docs.golden"
