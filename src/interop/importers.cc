// SPDX-License-Identifier: Apache-2.0
// Implements: importer_of and import_formats (foreign.h).
#include <utility>

#include "interop/foreign.h"

namespace hocket::interop {

namespace {

constexpr std::pair<const char*, Importer> kImporters[] = {{"megatron", import_megatron},
                                                           {"torchtitan", import_torchtitan},
                                                           {"deepspeed", import_deepspeed},
                                                           {"verl", import_verl},
                                                           {"axolotl", import_axolotl}};

}  // namespace

Importer importer_of(const std::string& format) {
  for (const auto& [name, importer] : kImporters) {
    if (format == name) return importer;
  }
  return nullptr;
}

std::vector<std::string> import_formats() {
  std::vector<std::string> names;
  for (const auto& [name, importer] : kImporters) {
    names.emplace_back(name);
  }
  return names;
}

}  // namespace hocket::interop
