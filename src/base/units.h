// SPDX-License-Identifier: Apache-2.0
// Quantities with units, as configuration files write them: `400Gbit/s`, `3.35TB/s`, `80GiB`,
// `5us`, `989TFLOP/s`. Inside the program they are plain doubles in the base unit.
#pragma once

#include <string>
#include <string_view>

namespace hocket {

/// Dimension of a quantity; values are in the named unit.
enum class Unit {
  none,     ///< a plain number
  bytes,    ///< B; kB MB GB TB PB (10^3) and KiB MiB GiB TiB PiB (2^10)
  bytes_s,  ///< B/s with the same prefixes, or bit/s with k M G T P (10^3)
  seconds,  ///< s, ms, us, ns, min, h
  flops_s,  ///< FLOP/s with k M G T P E
  flops,    ///< FLOP with k M G T P E
  count,    ///< k M B T (10^3 to 10^12), as in 30B parameters or 2M tokens
};

/// Parses "<number><unit>" (blanks between are allowed); a number alone is in the base unit. False
/// if it does not parse or the unit measures something else.
bool parse_quantity(std::string_view text, Unit unit, double* out);

/// Returns the same, or throws Error `[where] ...` with the units that would fit.
double parse_quantity(std::string_view text, Unit unit, const std::string& where);

/// Shortest text that parses back to exactly `value`: "400Gbit/s" reads back as "50GB/s".
std::string format_quantity(double value, Unit unit);

/// Returns examples for messages: "bytes, such as 512MiB or 80GB".
const char* unit_examples(Unit unit);

}  // namespace hocket
