// SPDX-License-Identifier: Apache-2.0
// Implements: axolotl_keys (tables.h), the fields of axolotl/utils/schemas, releases 0.8 to 0.19.
#include "interop/tables.h"

namespace hocket::interop {

namespace {

constexpr KeyGroup kAxolotlGroups[] = {
#include "interop/axolotl_keys.inc"
};

}  // namespace

const KnownKeys& axolotl_keys() {
  static const KnownKeys keys(kAxolotlGroups);
  return keys;
}

}  // namespace hocket::interop
