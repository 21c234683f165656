// SPDX-License-Identifier: Apache-2.0
// Tables of the settings of other trainers.
#pragma once

#include "interop/known_keys.h"

namespace hocket::interop {

const KnownKeys& megatron_keys();
const KnownKeys& torchtitan_keys();
const KnownKeys& torchtitan_json_keys();
const KnownKeys& deepspeed_keys();
const KnownKeys& verl_keys();
const KnownKeys& axolotl_keys();

}  // namespace hocket::interop
