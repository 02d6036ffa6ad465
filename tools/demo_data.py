# SPDX-License-Identifier: Apache-2.0
"""Pictures of coloured shapes, questions about them, and short texts about such shapes: what the model in demo/ is trained on.

Everything follows from a seed. A picture is a grid of at most 4 x 4 cells; some hold one shape. Which (colour, shape, relation) are
never asked about in training is decided by held_out().
"""
import math
import random
import struct
import zlib

import numpy

COLOURS = ["red", "blue", "green", "yellow", "white", "black", "orange", "purple"]
RGB = [(220, 30, 30), (40, 70, 230), (30, 160, 50), (245, 225, 40), (250, 250, 250), (10, 10, 10), (250, 135, 15), (140, 40, 170)]
SHAPES = ["square", "circle", "triangle", "star", "cross", "ring"]
PLURAL = ["squares", "circles", "triangles", "stars", "crosses", "rings"]
RELATIONS = ["left of", "right of", "above", "below"]
STEPS = [(0, -1), (0, 1), (-1, 0), (1, 0)]  # row and column of the cell that a relation names, from the cell asked about
PLACES = ["on the table", "in the box", "on the page", "on the shelf", "in the garden"]
NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eva", "Finn"]
SIZES = [64, 80, 96, 112]  # of a side, in pixels
KINDS = ["relation", "colour", "shape", "count", "presence"]


def held_out(colour, shape, relation):
    """24 of 192: one relation for half of all coloured shapes."""
    return (colour + 2 * shape) % 8 == relation


def a(colour, shape):
    return "%s %s %s" % ("an" if COLOURS[colour] == "orange" else "a", COLOURS[colour], SHAPES[shape])


def mask(shape, radius):
    """Pixels of a shape, [n, n], n = 2 * ceil(radius); pixels are in or out by their centre."""
    n = math.ceil(radius)
    at = (numpy.arange(2 * n) - n + 0.5) / radius
    v, u = numpy.meshgrid(at, at, indexing="ij")
    away = numpy.hypot(u, v)
    if shape == 0:
        return (abs(u) <= 0.86) & (abs(v) <= 0.86)
    if shape == 1:
        return away <= 1
    if shape == 2:
        return (v >= -0.95) & (v <= 0.85) & (abs(u) <= (v + 0.95) / 1.8)
    if shape == 3:  # five points: the edge between a tip and the next inner corner is straight
        turn = (numpy.arctan2(u, -v) % (2 * math.pi / 5) + 2 * math.pi / 5) % (2 * math.pi / 5)
        turn = numpy.minimum(turn, 2 * math.pi / 5 - turn)
        inner, half = 0.42, math.pi / 5
        edge = inner * math.sin(half) / (numpy.sin(turn) * (1 - inner * math.cos(half)) + inner * math.sin(half) * numpy.cos(turn))
        return away <= edge
    if shape == 4:
        return ((abs(u) <= 0.34) & (abs(v) <= 1)) | ((abs(v) <= 0.34) & (abs(u) <= 1))
    return (away <= 1) & (away >= 0.52)


MASKS = {}


class Scene:
    """Shapes in cells of a grid and where they are drawn: cells[(row, column)] = (colour, shape)."""

    def __init__(self, seed, size=None, noise=None, most=16):
        r = self.r = random.Random(seed)
        self.height, self.width = size or random_size(r)
        self.rows, self.columns = (r.choice([n for n in (2, 3, 4) if 16 <= side / n <= 32]) for side in (self.height, self.width))
        colours, shapes = r.sample(range(8), r.randint(3, 7)), r.sample(range(6), r.randint(3, 6))
        places = [(i, j) for i in range(self.rows) for j in range(self.columns)]
        n = r.randint(max(2, len(places) * 4 // 10), max(2, len(places) * 8 // 10))
        n = min(n, most)
        self.cells = {p: (r.choice(colours), r.choice(shapes)) for p in sorted(r.sample(places, n))}
        self.noise = (r.random() < 0.5) if noise is None else noise
        self.ground = r.randint(105, 165)
        self.centres = {}
        self.draw(seed)

    def draw(self, seed):
        r = self.r
        self.pixels = numpy.full((self.height, self.width, 3), self.ground, numpy.uint8)
        high, wide = self.height / self.rows, self.width / self.columns
        for (i, j), (colour, shape) in self.cells.items():
            room = min(high, wide)
            radius = r.randint(11, int(2 * min(8.5, room / 2 - 1))) / 2
            y = int((i + 0.5) * high + r.uniform(-1, 1) * max(1, min(3, (high - 16) / 2)) + 0.5)
            x = int((j + 0.5) * wide + r.uniform(-1, 1) * max(1, min(3, (wide - 16) / 2)) + 0.5)
            if (shape, radius) not in MASKS:
                MASKS[shape, radius] = mask(shape, radius)
            m = MASKS[shape, radius]
            n = len(m) // 2
            y, x = min(max(y, n), self.height - n), min(max(x, n), self.width - n)
            self.centres[i, j] = (min(y, self.height - 1) // 16, min(x, self.width - 1) // 16)
            paint = [min(255, max(0, c + r.randint(-12, 12))) for c in RGB[colour]]
            self.pixels[y - n:y + n, x - n:x + n][m] = paint
        if self.noise:
            spread = numpy.random.default_rng(seed).integers(-8, 9, self.pixels.shape, dtype=numpy.int16)
            self.pixels = (self.pixels + spread).clip(0, 255).astype(numpy.uint8)

    def neighbour(self, cell, relation):
        return self.cells.get((cell[0] + STEPS[relation][0], cell[1] + STEPS[relation][1]))

    def relations(self, held):
        """All questions of relation that have one answer: those held out, or the others."""
        counts = {}
        for thing in self.cells.values():
            counts[thing] = counts.get(thing, 0) + 1
        out = []
        for cell, (colour, shape) in self.cells.items():
            for k in range(4):
                other = self.neighbour(cell, k)
                if other and counts[colour, shape] == 1 and held_out(colour, shape, k) == held:
                    out.append(("What is %s the %s %s?" % (RELATIONS[k], COLOURS[colour], SHAPES[shape]), a(*other)))
        return out

    def ask(self, kind, held=False):
        """One question of a kind with its answer, or None where the picture has none."""
        r, things = self.r, list(self.cells.values())
        if kind == "relation":
            all_of = self.relations(held)
            return r.choice(all_of) if all_of else None
        if kind == "colour":
            once = [t for t in things if sum(o[1] == t[1] for o in things) == 1]
            return ("What colour is the %s?" % SHAPES[(t := r.choice(once))[1]], COLOURS[t[0]]) if once else None
        if kind == "shape":
            once = [t for t in things if sum(o[0] == t[0] for o in things) == 1]
            return ("What shape is the %s one?" % COLOURS[(t := r.choice(once))[0]], SHAPES[t[1]]) if once else None
        if kind == "count":
            by = r.randint(0, 1)
            n, want = len((COLOURS, SHAPES)[by]), r.randint(0, 4)
            counts = [sum(t[by] == k for t in things) for k in range(n)]
            fit = [k for k in range(n) if counts[k] == want]
            if not fit:
                return None
            k = r.choice(fit)
            return ("How many %s are there?" % ((COLOURS[k] + " shapes") if by == 0 else PLURAL[k]), str(want))
        if r.random() < 0.5:
            return ("Is there %s?" % a(*r.choice(things)), "yes")
        near = [(c, s) for c in {t[0] for t in things} for s in {t[1] for t in things}] if r.random() < 0.6 else \
            [(c, s) for c in range(8) for s in range(6)]
        near = sorted(set(near) - set(things))
        return ("Is there %s?" % a(*r.choice(near)), "no") if near else None


def random_size(r):
    return tuple(SIZES[(x > 0.4) + (x > 0.65) + (x > 0.85)] for x in (r.random(), r.random()))


def questions(scene, n, weights=(5, 2, 2, 2, 2)):
    """n questions for training, none of them held out."""
    out = []
    while len(out) < n:
        kind = scene.r.choices(KINDS, weights)[0]
        asked = scene.ask(kind)
        if asked:
            out.append(asked)
    return out


def document(seed):
    """One short text: who looks, what is where, and questions whose answers follow from the text."""
    r = random.Random(seed)
    things = []
    for _ in range(r.randint(2, 3)):
        t = (r.randrange(8), r.randrange(6))
        while any(t[0] == o[0] or t[1] == o[1] for o in things):
            t = (r.randrange(8), r.randrange(6))
        things.append(t)
    name, place, axis = r.choice(NAMES), r.choice(PLACES), r.choice((0, 2))
    say = lambda t: "the %s %s" % (COLOURS[t[0]], SHAPES[t[1]])
    parts = ["%s looks at the shapes %s." % (name, place)]
    parts.append("There is " + ", ".join(a(*t) for t in things[:-1]) + " and " + a(*things[-1]) + ".")
    for x, y in zip(things, things[1:]):
        parts.append("%s is %s %s." % (say(x).capitalize(), RELATIONS[axis], say(y)))
    for _ in range(r.randint(2, 3)):
        i, kind, t = r.randrange(len(things) - 1), r.randrange(4), r.choice(things)
        if kind == 0:
            q = "What is %s %s? %s." % (RELATIONS[axis], say(things[i + 1]), say(things[i]).capitalize())
        elif kind == 1:
            q = "What is %s %s? %s." % (RELATIONS[axis + 1], say(things[i]), say(things[i + 1]).capitalize())
        elif kind == 2:
            q = "What colour is the %s? It is %s." % (SHAPES[t[1]], COLOURS[t[0]])
        else:
            q = "Which shape is %s? The %s." % (COLOURS[t[0]], SHAPES[t[1]])
        if q not in parts:  # nothing is asked twice: what repeats itself in training does so for ever when it writes
            parts.append(q)
    parts.append("%s is happy." % name)
    return " ".join(parts)


# ---- questions that are never asked in training ----

def held_out_questions(seed, each=60, noise=None):
    """Half of them relations that training leaves out, `each` of every other kind, all on pictures of their own: (scene, kind, question,
    answer)."""
    out, left = [], {k: each for k in KINDS}
    left["relation"] = 4 * each
    while any(left.values()):
        seed += 1
        scene = Scene(seed, noise=noise)
        kind = max(KINDS, key=lambda k: left[k])
        asked = scene.ask(kind, held=True)
        if asked:
            left[kind] -= 1
            out.append((scene, kind, *asked))
    return out


def png(pixels):
    """The bytes of a PNG of [H, W, 3]."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))
