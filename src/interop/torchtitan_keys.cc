// SPDX-License-Identifier: Apache-2.0
// Implements: torchtitan_keys and torchtitan_json_keys (tables.h), the keys of job files of 2024 to
// 2026 and of the JSON of a configuration: fields of torchtitan/config and of the classes that own
// a section.
#include <iterator>
#include <vector>

#include "interop/tables.h"

namespace hocket::interop {

namespace {

constexpr KeyGroup kTorchtitanGroups[] = {
#include "interop/torchtitan_keys.inc"
};

/// Sections that only the JSON has, and those that hold whatever a component has.
constexpr KeyGroup kOfJson[] = {
    {KeyEffect::read, "",
     "optimizer: param_groups.*.** lr_scheduler: warmup_steps validator: enable freq : "
     "model_spec.** model.name model.flavor"},
    {KeyEffect::none, "",
     "dump_folder hf_assets_path tokenizer.** dataloader.** loss.** override.** validator: steps "
     "dataloader.** : optimizer: implementation optimizer_factory_kwargs_by_name.** : model.**"}};

}  // namespace

const KnownKeys& torchtitan_keys() {
  static const KnownKeys keys(kTorchtitanGroups);
  return keys;
}

const KnownKeys& torchtitan_json_keys() {
  static const KnownKeys keys([] {
    std::vector<KeyGroup> all(std::begin(kTorchtitanGroups), std::end(kTorchtitanGroups));
    all.insert(all.end(), std::begin(kOfJson), std::end(kOfJson));
    return all;
  }());
  return keys;
}

}  // namespace hocket::interop
