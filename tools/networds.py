# SPDX-License-Identifier: Apache-2.0
"""Parses rates and delays of links: 200mbit, 50us, or one per host with commas in between."""
import argparse
import re

UNITS = {"bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
NUMBER = r"(\d+(?:\.\d+)?)"


def parse_rate(text):
    """Returns the bit/s of `200mbit`, or None for `none`."""
    m = re.fullmatch(NUMBER + r"(bit|kbit|mbit|gbit)", text)
    if text == "none":
        return None
    if not m or float(m[1]) * UNITS[m[2]] < 1e5:
        raise argparse.ArgumentTypeError(
            f"got the rate '{text}'; expected e.g. 1gbit, 200mbit (at least 100kbit), or none"
        )
    return float(m[1]) * UNITS[m[2]]


def parse_time(text):
    """Returns the seconds of `50us`, `1.5ms`, `2s` or `0`."""
    m = re.fullmatch(NUMBER + r"(us|ms|s)", text)
    if not m and text != "0":
        raise argparse.ArgumentTypeError(f"got the delay '{text}'; expected e.g. 50us, 1.5ms or 0")
    return float(m[1]) * TIMES[m[2]] if m else 0.0


def per_host(text, parse, hosts, what):
    """Returns one value per host from one value or a comma-separated list."""
    values = [parse(word) for word in text.split(",")]
    if len(values) == 1:
        return values * hosts
    if len(values) != hosts:
        raise argparse.ArgumentTypeError(f"--{what} has {len(values)} values; expected 1, or {hosts}: one per host")
    return values


def show_rate(rate):
    if rate is None:
        return "no limit"
    return f"{rate / 1e9:g} Gbit/s" if rate >= 1e9 else f"{rate / 1e6:g} Mbit/s"
