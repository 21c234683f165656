// SPDX-License-Identifier: Apache-2.0
// Values as text: str.format and the operator % of Python.
#pragma once

#include <string>

#include "data/chat/value.h"

namespace hocket::data::jinja {

/// `format % value`, of one value, a tuple or a dict. Throws Fault as Python does.
std::string percent_format(Budget* budget, std::string_view format, const Value& value);
/// `format.format(...)`; fields are names and indices without attributes and without a
/// specification, and anything else is a Fault.
std::string brace_format(Budget* budget, std::string_view format, const Arguments& arguments);

}  // namespace hocket::data::jinja
