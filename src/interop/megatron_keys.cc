// SPDX-License-Identifier: Apache-2.0
// Implements: megatron_keys (tables.h), the flags of Megatron-LM without their dashes. Sources:
// megatron/training/arguments.py of 2019 to 2025, and the fields of megatron/training/config and
// megatron/core that make flags since.
#include "interop/tables.h"

namespace hocket::interop {

namespace {

constexpr KeyGroup kMegatronGroups[] = {
#include "interop/megatron_keys.inc"
};

}  // namespace

const KnownKeys& megatron_keys() {
  static const KnownKeys keys(kMegatronGroups);
  return keys;
}

}  // namespace hocket::interop
