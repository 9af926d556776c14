"""Settings of the torch tests."""

import pytest


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """Tensors here are tiny: a second thread waits more than it works."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
