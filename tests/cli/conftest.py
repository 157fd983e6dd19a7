import pytest

from program import JOB, kept, losses, train


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory):
    """A run of nine steps that saved after 3, 6 and 9. Not to be changed: copy it."""
    run = tmp_path_factory.mktemp("unbroken") / "run"
    train(*kept(run, 9, 3))
    return run


@pytest.fixture(scope="session")
def one_rank():
    """The losses of JOB on one rank."""
    expected = losses(train(*JOB).stdout)
    assert len(expected) == 4
    return expected
