"""Loaders of a training: torch's, divided over the data-parallel ranks, and placeholders of Megatron-LM's datasets."""
import torch


class MegatronLMDummyDataLoader:
    """Stands for the datasets of the settings in Accelerator.prepare(), three times: train, valid, test.

    Args:
        **dataset_kwargs: data_path, splits_string (or split), seq_length, micro_batch_size, mock_data... by Megatron-LM's names.

    Example:
        loader = MegatronLMDummyDataLoader(data_path=["corpus_text_document"], splits_string="949,50,1", seq_length=1024,
                                           micro_batch_size=8)
    """

    def __init__(self, **dataset_kwargs):
        self.dataset_args = dict(dataset_kwargs)
        if "splits_string" in self.dataset_args:
            self.dataset_args.setdefault("split", self.dataset_args.pop("splits_string"))


class Loader:
    """A torch DataLoader whose batches are steps: this data-parallel rank's rows of each. The last step of an epoch is completed
    with the first samples. Every rank shuffles alike."""

    def __init__(self, loader, rows, group, seed):
        self.loader, self.rows, self.group, self.seed, self.epoch = loader, rows, group, seed, 0
        self.dataset = loader.dataset
        self.batch_size = rows

    def __len__(self):
        each = self.rows * self.group.size
        return (len(self.dataset) + each - 1) // each

    def __iter__(self):
        sampler = self.loader.sampler
        if isinstance(sampler, torch.utils.data.RandomSampler):
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(len(self.dataset), generator=generator).tolist()
        else:
            order = list(sampler)
        self.epoch += 1
        each = self.rows * self.group.size
        for begin in range(0, len(order), each):
            step = order[begin:begin + each]
            while len(step) < each:
                step += order[:each - len(step)]
            mine = step[self.group.rank * self.rows:][:self.rows]
            yield self.loader.collate_fn([self.dataset[i] for i in mine])
