// SPDX-License-Identifier: Apache-2.0
#include "data/gguf_sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"

namespace hocket::data {

nlohmann::json gguf_sampling(const gguf::Metadata& in, std::vector<std::string>* ignored) {
  nlohmann::json out = nlohmann::json::object();
  const std::string prefix = "general.sampling.";
  for (const auto& [theirs, ours] : {std::pair{"temp", "temperature"},
                                     {"top_p", "top_p"},
                                     {"min_p", "min_p"},
                                     {"penalty_repeat", "repetition_penalty"}}) {
    if (!in.has(prefix + theirs)) continue;
    // The file has floats: 0.8 is to be the double 0.8.
    double number = in.number(prefix + theirs);
    parse_double(fmt::format("{}", static_cast<float>(number)), &number);
    out[ours] = number;
  }
  if (out.contains("temperature") && out["temperature"].get<double>() < 0) {
    out["temperature"] = 0.0;
  }
  if (in.has(prefix + "top_k")) {
    out["top_k"] = std::max<int64_t>(in.integer(prefix + "top_k"), 0);
  }
  const std::string window = prefix + "penalty_last_n";
  if (in.has(window) && out.contains("repetition_penalty") && out["repetition_penalty"] != 1.0) {
    const int64_t tokens = in.integer(window);
    if (tokens == 0 || tokens < -1) {
      out.erase("repetition_penalty");
    } else if (tokens > 0) {  // -1: all tokens, as here
      ignored->push_back(window);
    }
  }
  for (const char* key : {"xtc_probability", "mirostat"}) {
    if (in.number(prefix + key, 0) != 0) {
      ignored->push_back(prefix + key);
    }
  }
  if (in.has(prefix + "sequence")) {
    ignored->push_back(prefix + "sequence");  // of samplers; ours is fixed
  }
  return out;
}

}  // namespace hocket::data
