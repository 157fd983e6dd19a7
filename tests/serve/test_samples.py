"""Random numbers of the prompts of one request: none are shared, unless the request names a seed."""

import pytest
from server import needs_binary

pytestmark = needs_binary

# So hot that a token follows from its random number alone, whatever the prompt.
HOT = {"temperature": 100, "max_tokens": 40, "ignore_eos": True, "logprobs": 0}
HOT_API = {"temperature": 100.0, "tokens_to_generate": 40, "logprobs": True}
PROMPTS = [[40, 41, 42], [70, 60, 50], [99, 3, 9], [8, 200, 31]]  # of one length


def tokens_of(server, **fields):
    choices = server.completion(**{**HOT, **fields}).json["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["logprobs"]["tokens"] for choice in choices]


def most_alike(texts):
    """The largest part of places at which two of the texts have one token; bytes of characters look alike and do not count."""
    def alike(one, other):
        return sum(a == b and a != "\ufffd" for a, b in zip(one, other)) / max(20, min(len(one), len(other)))
    return max(alike(one, other) for i, one in enumerate(texts) for other in texts[:i])


@pytest.mark.parametrize("more", [{}, {"seed": None}, {"seed": -1}, {"n": 3}, {"n": 2, "seed": -1}])
def test_prompts_of_one_request_share_no_random_numbers(server, more):
    for prompts in (PROMPTS, [PROMPTS[0]] * 4, ["The cat"] * 3):
        texts = tokens_of(server, prompt=prompts, **more)
        assert len(texts) == len(prompts) * more.get("n", 1) and most_alike(texts) < 0.3


def test_a_named_seed_gives_each_prompt_what_it_gets_alone(server):
    shared = tokens_of(server, prompt=PROMPTS, seed=5)
    assert shared == [tokens_of(server, prompt=prompt, seed=5)[0] for prompt in PROMPTS]
    assert most_alike(shared) > 0.5, "else the tests above would see nothing"
    several = tokens_of(server, prompt=[PROMPTS[0]] * 2, seed=5, n=2)
    assert several[:2] == several[2:] and most_alike(several[:2]) < 0.3 and several[0] == shared[0]


def test_requests_without_a_seed_differ(server):
    assert most_alike([tokens_of(server, prompt=PROMPTS[0])[0] for _ in range(4)]) < 0.3


def answers_of(server, prompts, **more):
    reply = server.api(prompts=prompts, **{**HOT_API, **more})
    assert reply.status == 200, reply.text
    begin = len(server.api(prompts=prompts[:1], tokens_to_generate=0, logprobs=True).json["segments"][0])
    return [segments[begin:] for segments in reply.json["segments"]]


def test_prompts_of_megatrons_calls(server):
    for prompts in (["The cat"] * 4, ["dog", "cat", "owl"]):
        assert most_alike(answers_of(server, prompts)) < 0.3
        assert most_alike(answers_of(server, prompts, random_seed=None)) < 0.3
    seeded = answers_of(server, ["The cat"] * 2, random_seed=7)
    assert seeded[0] == seeded[1] == answers_of(server, ["The cat"], random_seed=7)[0]
    assert most_alike([seeded[0], answers_of(server, ["The cat"], random_seed=8)[0]]) < 0.3
