"""Reads files of torch.save that Megatron-LM wrote: its classes become placeholders."""

import pickle
import zipfile
from pathlib import Path

import torch

FIXTURES = Path(__file__).parents[2] / "fixtures/models"


class Placeholder:
    def __new__(cls, *_args):
        return object.__new__(cls)


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        return Placeholder if module.startswith("megatron") else super().find_class(module, name)


class Reader:
    """A pickle module for torch.load."""

    Unpickler = Unpickler
    __name__ = "pickle"

    @staticmethod
    def load(file, **_options):
        return Unpickler(file).load()


def load(path):
    return torch.load(path, weights_only=False, pickle_module=Reader, map_location="cpu")


def unpack(archive, folder):
    """A zip file of fixtures."""
    with zipfile.ZipFile(FIXTURES / archive) as packed:
        packed.extractall(folder)
    return folder
