#!/usr/bin/env python3
"""Pictures for tests/images and what Pillow makes of them.

usage: image_reference.py make DIR          writes the small pictures of the project's own and DIR/pixels.tsv
       image_reference.py judge DIR [FILE]  pixels of every picture below DIR, as lines: path, width, height, SHA-256
                                            of the RGB bytes after exif_transpose and convert("RGB"), the same laid over white, or "refused"

Needs Pillow 12.2 or 12.3 (PyPI; see docs/images.md); offline, when the tests' data is to be made anew. Pixels come from a counter, not from a random number generator.
"""
import hashlib
import io
import os
import struct
import sys
import zlib

import PIL
from PIL import Image, ImageOps

if not (12, 2) <= tuple(map(int, PIL.__version__.split(".")[:2])) < (13, 0):
    sys.exit(f"Pillow 12.2 or 12.3 is needed, this is {PIL.__version__}: others resize some pictures otherwise")


def pixels(width, height, channels, seed):
    """A smooth ramp with edges in it, so that decoders have something to get wrong."""
    out = bytearray()
    for y in range(height):
        for x in range(width):
            for c in range(channels):
                v = (x * (3 + c) + y * (5 - c) + seed * 17) % 256
                if (x // 5 + y // 7) % 3 == 0:
                    v = 255 - v
                out.append(v)
    return bytes(out)


def picture(mode, width, height, seed):
    channels = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}[mode]
    return Image.frombytes(mode, (width, height), pixels(width, height, channels, seed))


def odd_exif():
    """Orientations as they may be written: name, bytes of the TIFF structure behind "Exif" (perhaps once more)."""
    def tiff(*entries):
        return b"II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4)

    def entry(kind, count, value, tag=0x112):
        return struct.pack("<HHII", tag, kind, count, value)

    yield "long", tiff(entry(4, 1, 6))
    yield "signed_byte", tiff(entry(6, 1, 6))
    yield "byte", tiff(entry(1, 1, 6))
    yield "twice", tiff(entry(3, 1, 8), entry(3, 1, 3))
    yield "two", tiff(entry(3, 2, 6 | 8 << 16))
    yield "none", tiff(entry(3, 1, 6), entry(3, 0, 3))
    yield "beyond", tiff(entry(2, 9, 4000, 0x10F), entry(3, 1, 6))
    yield "unknown", tiff(entry(99, 9, 4000, 0x10F), entry(3, 1, 6))
    yield "prefix", b"Exif\0\0" + tiff(entry(3, 1, 6))


def make(directory):
    os.makedirs(directory, exist_ok=True)

    def save(im, name, **how):
        im.save(os.path.join(directory, name), **how)

    rgb, grey = picture("RGB", 37, 23, 1), picture("L", 19, 31, 2)
    save(rgb, "rgb.jpg", quality=90)
    save(rgb, "rgb_444.jpg", quality=95, subsampling=0)
    save(rgb, "progressive.jpg", quality=80, progressive=True)
    save(grey, "grey.jpg", quality=90)
    save(picture("CMYK", 21, 17, 3), "cmyk.jpg", quality=90)
    save(picture("RGB", 1, 64, 4), "one_wide.jpg", quality=90)
    for o in range(1, 9):
        exif = Image.Exif()
        exif[0x112] = o
        save(picture("RGB", 24, 16, 5), f"exif_{o}.jpg", quality=90, exif=exif)
    exif = Image.Exif()
    exif[0x112] = 6
    save(rgb, "exif_6.png", exif=exif)
    for name, data in odd_exif():
        save(picture("RGB", 24, 16, 5), f"exif_{name}.jpg", quality=90, exif=b"Exif\0\0" + data)
    save(rgb, "exif_prefix.png", exif=b"Exif\0\0" + data)
    save(rgb, "exif_8.webp", exif=exif.tobytes().replace(b"\x06\x00\x00\x00", b"\x08\x00\x00\x00"), lossless=True)
    save(rgb, "rgb.png")
    save(grey, "grey.png")
    save(Image.frombytes("I;16", (19, 15), pixels(19, 15, 2, 10)), "grey_16.png")
    save(picture("LA", 19, 31, 6), "grey_alpha.png")
    save(picture("RGBA", 20, 20, 7), "rgba.png")
    save(rgb.quantize(16), "palette_4.png", bits=4)
    save(rgb.quantize(200), "palette_8.png", transparency=3)
    save(grey.convert("1"), "one_bit.png")
    save(rgb, "lossy.webp", quality=80)
    save(picture("RGBA", 33, 9, 8), "alpha.webp", lossless=True, exact=True)
    save(picture("RGBA", 33, 9, 8), "alpha_lossy.webp", quality=70)
    save(rgb, "animated.webp", save_all=True, append_images=[picture("RGB", 37, 23, 9)], duration=100, lossless=True)
    save(rgb.quantize(64), "plain.gif")
    save(rgb.quantize(64), "transparent.gif", transparency=5)
    save(rgb.quantize(64), "interlaced.gif", interlace=1)
    save(rgb.quantize(64), "animated.gif", save_all=True, append_images=[picture("RGB", 37, 23, 9).quantize(64)], duration=100)
    head = b"IHDR" + struct.pack(">IIBBBBB", 60000, 60000, 8, 2, 0, 0, 0)
    with open(os.path.join(directory, "huge.png"), "wb") as out:  # a header and no pixels
        out.write(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head)))
        out.write(struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT")))
    with open(os.path.join(directory, "resize.tsv"), "w") as out:
        resize(out)
    with open(os.path.join(directory, "pixels.tsv"), "w") as out:
        judge(directory, out)


def resize(out):
    """Lines: filter, seed and sizes of a picture as pixels() makes it, sizes wanted, SHA-256 of what Pillow gives."""
    sizes = [(37, 23, 37, 23), (37, 23, 74, 46), (37, 23, 14, 14), (37, 23, 37, 9), (37, 23, 5, 23), (1, 64, 28, 28), (64, 1, 3, 3), (1, 1, 16, 16),
             (97, 89, 56, 56), (89, 97, 113, 101), (640, 3, 56, 28), (3, 640, 1, 1), (200, 150, 224, 168), (255, 256, 28, 29), (31, 17, 336, 336)]
    names = ["NEAREST", "BOX", "BILINEAR", "HAMMING", "BICUBIC", "LANCZOS"]
    cases = [(name, seed, *four) for name in names for seed, four in enumerate(sizes)]
    cases.append(("HAMMING", 64, 179, 266, 64, 80))  # one byte tells float32 constants from float64 ones
    for name, seed, w, h, to_w, to_h in cases:
        got = picture("RGB", w, h, seed).resize((to_w, to_h), Image.Resampling[name])
        print(name.lower(), seed, w, h, to_w, to_h, hashlib.sha256(got.tobytes()).hexdigest(), sep="\t", file=out)


def judge(directory, out):
    names = []
    for folder, _, files in os.walk(directory):
        names += [os.path.relpath(os.path.join(folder, f), directory) for f in files]
    for name in sorted(names):
        if not name.lower().endswith((".jpg", ".jpeg", ".png", ".webp", ".gif")):
            continue
        with open(os.path.join(directory, name), "rb") as f:
            data = f.read()
        try:
            im = Image.open(io.BytesIO(data))
            im.load()
            seen = ImageOps.exif_transpose(im)
            if im.mode.startswith("I;16"):  # Pillow's convert("RGB") makes 255 of all that is above; see docs/images.md
                seen = Image.frombytes("L", seen.size, seen.tobytes()[1::2])
            plain = seen.convert("RGB")
            white = Image.new("RGBA", seen.size, (255, 255, 255, 255))
            white.alpha_composite(seen.convert("RGBA"))
            sums = [hashlib.sha256(p.tobytes()).hexdigest() for p in (plain, white.convert("RGB"))]
            print(name, im.mode, seen.width, seen.height, *sums, sep="\t", file=out)
        except Exception as why:  # whatever Pillow refuses with
            print(name, "refused", type(why).__name__, sep="\t", file=out)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "make":
        make(sys.argv[2])
    elif len(sys.argv) in (3, 4) and sys.argv[1] == "judge":
        judge(sys.argv[2], open(sys.argv[3], "w") if len(sys.argv) == 4 else sys.stdout)
    else:
        sys.exit(__doc__)
