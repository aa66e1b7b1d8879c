"""Requests with common beginnings, of every shape that the router renders by itself."""

import random

WORDS = "the answer question river mountain engine router worker request cache block token prefix please explain how why when".split()


class Traffic:
    """Draws requests; `past` has every one that was drawn, as (path, body)."""

    def __init__(self, seed, words_max=420):
        self.random = random.Random(seed)
        self.words_max = words_max
        self.systems = [self.words(self.random.randint(40, 160)) for _ in range(5)]
        self.ids = [[self.random.randrange(256) for _ in range(self.random.randint(40, 200))] for _ in range(3)]
        self.talks = []
        self.past = []

    def words(self, count):
        return " ".join(self.random.choice(WORDS) for _ in range(count))

    def draw(self):
        kind = self.random.random()
        if kind < 0.6:
            request = ("/v1/chat/completions", {"messages": self.chat()})
        elif kind < 0.8:
            request = ("/v1/completions", {"prompt": f"{self.random.choice(self.systems)} {self.words(self.random.randint(1, 60))}"})
        else:
            tail = [self.random.randrange(256) for _ in range(self.random.randint(1, 90))]
            request = ("/v1/completions", {"prompt": self.random.choice(self.ids) + tail})
        request[1].update(model="tiny", max_tokens=self.random.randint(1, 12), temperature=0, ignore_eos=True)
        if self.random.random() < 0.1:
            request[1]["cache_salt"] = self.random.choice(["tenant-a", "tenant-b"])
        self.past.append(request)
        return request

    def chat(self):
        """A new conversation, or the next turn of one."""
        if not self.talks or self.random.random() < 0.4:
            self.talks.append([{"role": "system", "content": self.random.choice(self.systems)}])
        number = self.random.randrange(len(self.talks))
        talk = [*self.talks[number], {"role": "user", "content": self.words(self.random.randint(3, 50))}]
        if sum(len(message["content"].split()) for message in talk) > self.words_max:
            del self.talks[number]
        else:
            self.talks[number] = [*talk, {"role": "assistant", "content": self.words(self.random.randint(2, 20))}]
        return talk
