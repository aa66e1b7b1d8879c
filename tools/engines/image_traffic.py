"""Chats with images: several turns, several images, the same image in other chats, another one at the same place."""

import base64
import random
import struct
import zlib

from engines.traffic import WORDS

SIZES = [(56, 56), (84, 224), (224, 224), (300, 100), (420, 280), (28, 28)]


def png(width, height, color):
    """A `data:` URL with an image of one color."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + bytes(color) * width
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * height, 9)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


class ImageTraffic:
    """Draws chats; `past` has every one that was drawn, as (path, body)."""

    def __init__(self, seed, images_max=6):
        self.random = random.Random(seed)
        self.images_max = images_max
        colors = [tuple(self.random.randrange(256) for _ in range(3)) for _ in range(14)]
        self.images = [png(*self.random.choice(SIZES), color) for color in colors]
        # Of one size: a run of placeholders does not tell them apart.
        self.images += [png(224, 224, color) for color in colors[:4]]
        self.systems = [self.words(self.random.randint(5, 120)) for _ in range(3)]
        self.questions = [self.words(self.random.randint(1, 40)) for _ in range(8)]
        self.talks = []
        self.past = []

    def words(self, count):
        return " ".join(self.random.choice(WORDS) for _ in range(count))

    def part(self, url):
        return {"type": "image_url", "image_url": {"url": url}}

    def turn(self):
        """What a user says: text, images, or both in any order, sometimes one image after the other."""
        parts = [{"type": "text", "text": self.random.choice(self.questions)} for _ in range(self.random.randint(1, 2))]
        for _ in range(self.random.choice([0, 1, 1, 1, 2])):
            parts.insert(self.random.randint(0, len(parts)), self.part(self.random.choice(self.images)))
        return {"role": "user", "content": parts}

    def draw(self):
        kind = self.random.random()
        if kind < 0.35 or not self.talks:
            talk = [{"role": "system", "content": self.random.choice(self.systems)}, self.turn()]
        elif kind < 0.5:
            talk = self.with_another_image(self.random.choice(self.talks))
        else:
            talk = [*self.random.choice(self.talks), {"role": "assistant", "content": self.words(self.random.randint(1, 20))}, self.turn()]
        if self.image_count(talk) > self.images_max or len(talk) > 9:
            talk = talk[:2]
        self.talks = [*self.talks[-30:], talk]
        body = {"messages": talk, "model": "tiny", "max_tokens": self.random.randint(1, 8), "temperature": 0, "ignore_eos": True}
        if self.random.random() < 0.1:
            body["cache_salt"] = self.random.choice(["tenant-a", "tenant-b"])
        request = ("/v1/chat/completions", body)
        self.past.append(request)
        return request

    def with_another_image(self, talk):
        """The same words, with one image in the place of another."""
        places = [(at, index) for at, message in enumerate(talk) if isinstance(message["content"], list)
                  for index, part in enumerate(message["content"]) if part["type"] == "image_url"]  # fmt: skip
        if not places:
            return talk
        at, index = self.random.choice(places)
        content = list(talk[at]["content"])
        content[index] = self.part(self.random.choice(self.images))
        return [*talk[:at], {**talk[at], "content": content}, *talk[at + 1 :]]

    def image_count(self, talk):
        return sum(part["type"] == "image_url" for message in talk if isinstance(message["content"], list) for part in message["content"])
