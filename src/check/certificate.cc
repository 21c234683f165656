// SPDX-License-Identifier: Apache-2.0
#include "check/certificate.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"

namespace hocket::check {
namespace {

Hash128 parse_hash(const JsonView& json) {
  const std::string& text = json.as_string();
  Hash128 hash;
  const auto half = [&](size_t begin, uint64_t* to) {
    const char* const at = text.data() + begin;
    const auto [end, error] = std::from_chars(at, at + 16, *to, 16);
    return error == std::errc() && end == at + 16;
  };
  if (text.size() != 32 || !half(0, &hash.high) || !half(16, &hash.low)) {
    json.fail("is " + quote(text) + "; expected 32 hexadecimal digits");
  }
  return hash;
}

}  // namespace

Hash128 reference_hash(const graph::Graph& graph, int32_t num_micro_batches) {
  Hasher hasher;
  hasher.add(graph::print(graph)).add(static_cast<uint64_t>(num_micro_batches));
  return hasher.finish();
}

Hash128 mesh_hash(const std::vector<program::Role>& roles) {
  Hasher hasher;
  for (const program::Role& role : roles) {
    for (const graph::Axis& axis : role.mesh.axes) {
      hasher.add(fmt::format("{}={} ", axis.name, axis.size));
    }
    if (&role != &roles.back()) {
      hasher.add("+ ");
    }
  }
  return hasher.finish();
}

std::string ranks_in_words(const std::vector<program::Role>& roles) {
  std::string text;
  for (const program::Role& role : roles) {
    text += text.empty() ? "" : " + ";
    if (roles.size() > 1) {
      text += role.name + ": ";
    }
    for (size_t axis = 0; axis < role.mesh.axes.size(); ++axis) {
      const graph::Axis& of_role = role.mesh.axes[axis];
      text += fmt::format("{}{} {}", axis == 0 ? "" : " x ", of_role.name, of_role.size);
    }
  }
  return text;
}

std::string differences(const Certificate& certified, const Certificate& now) {
  std::vector<std::string> list;
  const auto compare = [&](const char* what, const Hash128& then, const Hash128& current) {
    if (then != current) {
      list.push_back(fmt::format("the {} ({} is not {})", what, current.hex(), then.hex()));
    }
  };
  compare("program", certified.program, now.program);
  compare("reference graph", certified.reference, now.reference);
  compare("mesh", certified.mesh, now.mesh);
  return join(list, ", ");
}

Certificate parse_certificate(const JsonView& json) {
  const JsonView at = json.is_object() && json.has("data") ? json.at("data") : json;
  Certificate certificate;
  certificate.program = parse_hash(at.at("program_hash"));
  certificate.reference = parse_hash(at.at("reference_hash"));
  certificate.mesh = parse_hash(at.at("mesh_hash"));
  certificate.ranks = at.get_string("mesh");
  return certificate;
}

Certificate read_certificate(const std::string& path) {
  const nlohmann::json json = read_json(path);
  return parse_certificate(JsonView(json, path));
}

}  // namespace hocket::check
