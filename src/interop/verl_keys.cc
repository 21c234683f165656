// SPDX-License-Identifier: Apache-2.0
// Implements: verl_keys (tables.h), the keys of verl's configuration, releases 0.2 to 0.9, and of
// its recipes.
#include "interop/tables.h"

namespace hocket::interop {

namespace {

constexpr KeyGroup kVerlGroups[] = {
#include "interop/verl_keys.inc"
};

}  // namespace

const KnownKeys& verl_keys() {
  static const KnownKeys keys(kVerlGroups);
  return keys;
}

}  // namespace hocket::interop
