import pytest

from server import make_model, serving


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def server(run):
    """For tests that leave no trace in it."""
    with serving(run) as started:
        yield started
