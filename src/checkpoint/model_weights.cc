// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/gguf_model.h"

namespace hocket::checkpoint {

using graph::DType;
using models::ParamWeights;
using models::WeightForm;
using models::WeightSlice;

namespace {

constexpr std::string_view kPrefix = "model.";
/// Elements compared at a time, as f64: two buffers of 512 KiB.
constexpr int64_t kCompareElements = 1 << 16;

// Strips the "model." prefix. A model without a head saves the same names without it.
std::string bare_name(const std::string& name) {
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

// Lists the first names, as "a, b, c and 5 more".
std::string some(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i) {
    shown.push_back(quote(names[i]));
  }
  std::string text = join(shown, ", ");
  if (names.size() > kShown) {
    text += fmt::format(" and {} more", names.size() - kShown);
  }
  return text;
}

}  // namespace

ModelWeights::ModelWeights(const std::string& path, const models::ModelConfig& config)
    : file_(open_tensors(path)), params_(models::weight_map(config)) {
  // Requires a match in both directions: every parameter finds its tensors, and every tensor
  // belongs to a parameter. Otherwise the model would differ from the one that was saved.
  // Checkpoints of the bare model (AutoModel) name every tensor without the prefix.
  const std::vector<std::string> names = file_.names();
  const bool bare = std::none_of(names.begin(), names.end(),
                                 [](const std::string& name) { return name.starts_with(kPrefix); });
  std::vector<std::string> missing;
  for (const ParamWeights& param : params_) {
    match(param, bare, missing);
  }
  if (!missing.empty()) {
    fail(path, "{} of the model's tensors missing: {}; expected the weights of this configuration",
         missing.size() == 1 ? "1" : fmt::format("{}", missing.size()), some(missing));
  }

  std::set<std::string, std::less<>> known;
  for (const auto& [param, place] : stored_) {
    for (const WeightSlice& slice : place.form) {
      known.insert(slice.name);
    }
    for (const WeightSlice& slice : place.aliases) {
      known.insert(slice.name);
    }
  }
  std::vector<std::string> extra;
  for (const std::string& name : names) {
    if (!known.contains(name) && !models::is_ignored_weight(name)) {
      extra.push_back(name);
    }
  }
  if (!extra.empty()) {
    fail(path, "has {} tensor{} unknown to the {} of this configuration: {}", extra.size(),
         extra.size() == 1 ? "" : "s", config.family, some(extra));
  }
  for (const auto& [param, place] : stored_) {
    for (const WeightSlice& alias : place.aliases) {
      check_alias(param, alias);
    }
  }
}

void ModelWeights::check_shape(const WeightSlice& slice) const {
  const Safetensors::Entry entry = file_.find(slice.name);
  if (entry.tensor->dims != slice.dims) {
    fail(entry.file->path(), "tensor {} has shape [{}]; expected [{}] by the configuration",
         quote(slice.name), fmt::join(entry.tensor->dims, ","), fmt::join(slice.dims, ","));
  }
}

void ModelWeights::match(const ParamWeights& param, bool bare, std::vector<std::string>& missing) {
  // A parameter can be stored in several forms (one tensor per expert, or all experts in one). The
  // first form that is complete is used; if none is, the tensors of the usual form are reported as
  // missing. Aliases repeat the parameter's values and are optional.
  const auto named = [bare](WeightForm form) {
    for (WeightSlice& slice : form) {
      if (bare) {
        slice.name = bare_name(slice.name);
      }
    }
    return form;
  };
  const auto absent = [this](const WeightSlice& slice) {
    return file_.find(slice.name).tensor == nullptr;
  };
  StoredParameter place;
  place.numel = 1;
  for (int64_t dim : param.dims) {
    place.numel *= dim;
  }
  for (const WeightForm& form : param.forms) {
    place.form = named(form);
    if (std::none_of(place.form.begin(), place.form.end(), absent)) break;
    place.form.clear();
  }
  if (place.form.empty()) {
    for (const WeightSlice& slice : named(param.forms[0])) {
      if (absent(slice)) {
        missing.push_back(slice.name);
      }
    }
    return;
  }
  for (const WeightSlice& slice : named(param.aliases)) {
    if (!absent(slice)) {
      place.aliases.push_back(slice);
    }
  }
  for (const WeightSlice& slice : place.form) {
    check_shape(slice);
  }
  for (const WeightSlice& slice : place.aliases) {
    check_shape(slice);
  }
  stored_.emplace(param.param, std::move(place));
}

const ModelWeights::StoredParameter& ModelWeights::stored(std::string_view param) const {
  const auto it = stored_.find(param);
  HOCKET_CHECK(it != stored_.end(), "the model has no parameter '{}'", param);
  return it->second;
}

std::vector<WeightSlice> ModelWeights::slices(std::string_view param) const {
  const StoredParameter& p = stored(param);
  std::vector<WeightSlice> list = p.form;
  list.insert(list.end(), p.aliases.begin(), p.aliases.end());
  return list;
}

void ModelWeights::load_range(std::string_view param, int64_t first, int64_t count, DType dtype,
                              void* dst) const {
  const StoredParameter& p = stored(param);
  HOCKET_CHECK(first >= 0 && count >= 0 && first <= p.numel - count, "{}: elements {} + {} of {}",
               param, first, count, p.numel);
  const int64_t size = graph::size_of(dtype), end = first + count;
  // Slices are sorted by offset and cover the parameter.
  auto it =
      std::upper_bound(p.form.begin(), p.form.end(), first,
                       [](int64_t at, const WeightSlice& slice) { return at < slice.offset; });
  for (it = it == p.form.begin() ? it : it - 1; it != p.form.end() && it->offset < end; ++it) {
    const int64_t from = std::max(first, it->offset);
    const int64_t to = std::min(end, it->offset + it->numel());
    if (to <= from) continue;
    const Safetensors::Entry entry = file_.find(it->name);
    entry.file->read(*entry.tensor, from - it->offset, to - from, dtype,
                     static_cast<char*>(dst) + (from - first) * size);
  }
}

void ModelWeights::check_alias(std::string_view param, const WeightSlice& alias) const {
  // f64 holds every supported floating-point type exactly.
  const Safetensors::Entry entry = file_.find(alias.name);
  std::vector<double> ours(kCompareElements), theirs(kCompareElements);
  for (int64_t at = 0; at < alias.numel(); at += kCompareElements) {
    const int64_t n = std::min(kCompareElements, alias.numel() - at);
    load_range(param, alias.offset + at, n, DType::f64, ours.data());
    entry.file->read(*entry.tensor, at, n, DType::f64, theirs.data());
    if (std::memcmp(ours.data(), theirs.data(), static_cast<size_t>(n) * sizeof(double)) != 0) {
      fail(entry.file->path(),
           "tensor {} differs from {}; expected the same values: tie_word_embeddings is true",
           quote(alias.name), quote(stored(param).form[0].name));
    }
  }
}

std::vector<NamedTensor> to_slices(const NamedTensor& whole,
                                   const std::vector<WeightSlice>& slices) {
  const int64_t size = graph::size_of(whole.type.dtype);
  std::vector<NamedTensor> list;
  for (const WeightSlice& slice : slices) {
    HOCKET_CHECK(slice.offset + slice.numel() <= whole.type.numel(), "{} does not fit into {}",
                 slice.name, whole.name);
    NamedTensor named_tensor{slice.name, {whole.type.dtype, slice.dims}};
    if (whole.data != nullptr) {
      named_tensor.data = static_cast<const char*>(whole.data) + slice.offset * size;
    } else {
      named_tensor.read = [read = whole.read, offset = slice.offset](int64_t first, int64_t count,
                                                                     void* dst) {
        read(offset + first, count, dst);
      };
    }
    list.push_back(std::move(named_tensor));
  }
  return list;
}

}  // namespace hocket::checkpoint
