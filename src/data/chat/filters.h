// SPDX-License-Identifier: Apache-2.0
// Filters and tests of templates, by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/chat/value.h"

namespace hocket::data::jinja {

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
std::vector<std::string> filter_names();
std::vector<std::string> test_names();

/// `subject | name(arguments)`. Throws Fault; also for a name that is no filter.
Value apply_filter(Budget* budget, std::string_view name, const Value& subject,
                   const Arguments& arguments);
/// `subject is name(arguments)`.
bool apply_test(Budget* budget, std::string_view name, const Value& subject,
                const Arguments& arguments);

}  // namespace hocket::data::jinja
