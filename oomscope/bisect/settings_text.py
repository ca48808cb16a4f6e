"""Settings of the allocator as text, apart and together: ``a:1,b:[x:2,y:3]`` is two of them."""

from __future__ import annotations

from collections.abc import Mapping


def split_settings(conf: str | None) -> dict[str, str]:
    """Return the settings of ``conf`` by name, each with its value as written; a comma in brackets parts nothing."""
    settings: dict[str, str] = {}
    depth, begin = 0, 0
    text = f"{conf or ''},"
    for place, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth <= 0:
            name, _, value = text[begin:place].partition(":")
            if name.strip():
                settings[name.strip()] = value.strip()
            begin = place + 1
    return settings


def join_settings(settings: Mapping[str, str | None]) -> str:
    """Return ``settings`` as one text, without those that are None."""
    return ",".join(f"{name}:{value}" for name, value in settings.items() if value is not None)


def apart(good: str | None, bad: str | None) -> dict[str, tuple[str | None, str | None]]:
    """Return each setting of two texts with both its values; empty where there are fewer than two to tell apart."""
    before, after = split_settings(good), split_settings(bad)
    names = dict.fromkeys((*before, *after))
    return {name: (before.get(name), after.get(name)) for name in names} if len(names) > 1 else {}
