// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/model_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/small_float.h"
#include "base/text.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/resolve.h"
#include "checkpoint/share.h"
#include "checkpoint/slices.h"

namespace hocket::checkpoint {

using graph::DType;
using models::ParamWeights;
using models::WeightForm;
using models::WeightSlice;

namespace {

/// Elements compared at a time, as f64: two buffers of 512 KiB.
constexpr int64_t kCompareElements = 1 << 16;

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

/// Rounds numbers to a type.
void store_as(DType dtype, const std::vector<double>& values, void* to) {
  const auto put = [&]<typename T>(T* out, auto&& rounded) {
    std::transform(values.begin(), values.end(), out, rounded);
  };
  switch (dtype) {
    case DType::f64:
      return put(static_cast<double*>(to), [](double x) { return x; });
    case DType::f32:
      return put(static_cast<float*>(to), [](double x) { return static_cast<float>(x); });
    case DType::bf16:
      return put(static_cast<uint16_t*>(to), [](double x) { return Bf16::encode(x); });
    case DType::f16:
      return put(static_cast<uint16_t*>(to), [](double x) { return F16::encode(x); });
    default:
      HOCKET_CHECK(false, "weights as {}", graph::to_string(dtype));
  }
}

}  // namespace

ModelWeights::ModelWeights(const std::string& path, const models::ModelConfig& config,
                           const std::string& adapter)
    : file_(open_tensors(base_folder(path))), params_(models::weight_map(config)) {
  // Requires a match in both directions: every parameter finds its tensors, and every tensor
  // belongs to a parameter. Otherwise the model would differ from the one that was saved.
  // Checkpoints of the bare model (AutoModel) name every tensor without the prefix.
  const std::vector<std::string> names = file_.names();
  find_prefixes(config, names);
  std::vector<std::string> missing;
  for (const ParamWeights& param : params_) {
    match(param, missing);
  }
  if (!missing.empty()) {
    const auto lost = file_.absent().find(missing[0]);
    fail(path,
         "{} of the model's tensors missing: {}; expected the weights of this configuration{}",
         missing.size() == 1 ? "1" : fmt::format("{}", missing.size()), some(missing),
         lost == file_.absent().end()
             ? ""
             : fmt::format("; the index says that {} holds the first; it does not", lost->second));
  }
  check_names(config, names);
  for (const auto& [param, place] : stored_) {
    for (const WeightSlice& alias : place.aliases) {
      check_alias(param, alias);
    }
  }
  // Last, so that comparisons are of the base's values.
  if (const std::string folder = adapter.empty() && is_adapter(path) ? path : adapter;
      !folder.empty()) {
    adapter_ = std::make_shared<const AdapterWeights>(folder, config);
  }
}

void ModelWeights::find_prefixes(const models::ModelConfig& config,
                                 const std::vector<std::string>& names) {
  // Wrappers of PyTorch (DataParallel, torch.compile) put a word before every name. The model alone
  // (AutoModel) saves the names without their usual begin.
  const auto all_begin = [&](const std::string& prefix) {
    return !names.empty() && std::all_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.starts_with(prefix);
    });
  };
  for (bool found = true; found;) {
    found = false;
    for (const char* word : {"module.", "_orig_mod."}) {
      if (all_begin(wrapper_ + word)) {
        wrapper_ += word;
        found = true;
      }
    }
  }
  const std::vector<std::string> begins = models::weight_prefixes(config);
  usual_ = begins[0];
  // The longest that any name has: one may begin with another.
  for (const std::string& begin : begins) {
    const bool there = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return name.starts_with(wrapper_ + begin);
    });
    if (there && begin.size() > instead_.size()) {
      instead_ = begin;
    }
  }
}

std::string ModelWeights::file_name(const std::string& name) const {
  if (!name.starts_with(usual_)) return wrapper_ + name;
  return wrapper_ + instead_ + name.substr(usual_.size());
}

void ModelWeights::check_names(const models::ModelConfig& config,
                               const std::vector<std::string>& names) const {
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
  std::vector<std::string> unused;  // parameters of other parts, not buffers
  for (const std::string& name : names) {
    if (known.contains(name)) continue;
    if (models::is_ignored_weight(config, std::string_view(name).substr(wrapper_.size()))) {
      if (name.ends_with(".weight")) {
        unused.push_back(name);
      }
    } else {
      extra.push_back(name);
    }
  }
  const std::string& path = file_.path();
  if (!extra.empty()) {
    fail(path, "has {} tensor{} unknown to the {} of this configuration: {}", extra.size(),
         extra.size() == 1 ? "" : "s", config.family, some(extra));
  }
  if (!unused.empty()) {
    log_warning("{}: the model of text is read without {}", path, some(unused));
  }
  if (!file_.absent().empty()) {
    const auto& [name, shard] = *file_.absent().begin();
    log_warning(
        "{}: the index names {} that no shard holds, such as {} of {}; the model has no use "
        "for it",
        path, counted(std::ssize(file_.absent()), "tensor"), quote(name), shard);
  }
}

void ModelWeights::check_shape(const WeightSlice& slice) const {
  const TensorFiles::Entry entry = file_.find(slice.name);
  if (entry.tensor->dims != slice.dims) {
    fail(entry.file->path(), "tensor {} has shape [{}]; expected [{}] by the configuration",
         quote(slice.name), fmt::join(entry.tensor->dims, ","), fmt::join(slice.dims, ","));
  }
}

void ModelWeights::match(const ParamWeights& param, std::vector<std::string>& missing) {
  // A parameter can be stored in several forms (one tensor per expert, or all experts in one). The
  // first form that is complete is used; if none is, the tensors of the usual form are reported as
  // missing. Aliases repeat the parameter's values and are optional.
  const auto named = [this](WeightForm form) {
    for (WeightSlice& slice : form) {
      slice.name = file_name(slice.name);
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
    if (!absent(slice) && slice != place.form[0]) {
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

DType ModelWeights::dtype(std::string_view param, int64_t first, int64_t count) const {
  std::optional<DType> all;
  for (const WeightSlice& slice : stored(param).form) {
    if (slice.offset >= first + count || slice.offset + slice.numel() <= first) continue;
    const TensorFiles::Entry entry = file_.find(slice.name);
    const std::optional<DType> one = floating_type(entry.tensor->type);
    if (!one) {
      fail(entry.file->path(), "tensor {} is stored as {}; expected F32, F64, BF16 or F16",
           quote(slice.name), to_string(entry.tensor->type));
    }
    all = all ? common_type(*all, *one) : *one;
  }
  HOCKET_CHECK(all.has_value(), "{}: elements {} + {}", param, first, count);
  return *all;
}

void ModelWeights::load_range(std::string_view param, int64_t first, int64_t count, DType dtype,
                              void* dst) const {
  const bool has_part = adapter_ && adapter_->has_part(param);
  if (adapter_ && adapter_->has(param) && !has_part) {
    return adapter_->load_range(param, first, count, dtype, dst);
  }
  if (adapter_ && adapter_->adapts(param)) {
    load_adapted(param, first, count, dtype, dst);
  } else {
    load_base(param, first, count, dtype, dst);
  }
  if (has_part) {
    adapter_->load_over(param, first, count, dtype, dst);
  }
}

void ModelWeights::load_adapted(std::string_view param, int64_t first, int64_t count, DType dtype,
                                void* dst) const {
  std::vector<double> sum;
  for (int64_t at = 0; at < count; at += kCompareElements) {
    const int64_t n = std::min(kCompareElements, count - at);
    sum.resize(static_cast<size_t>(n));
    load_base(param, first + at, n, DType::f64, sum.data());
    adapter_->add_to(param, first + at, n, sum.data());
    store_as(dtype, sum, static_cast<char*>(dst) + at * graph::size_of(dtype));
  }
}

void ModelWeights::load_base(std::string_view param, int64_t first, int64_t count, DType dtype,
                             void* dst) const {
  const StoredParameter& p = stored(param);
  HOCKET_CHECK(first >= 0 && count >= 0 && first <= p.numel - count, "{}: elements {} + {} of {}",
               param, first, count, p.numel);
  read_slices(file_, p.form, first, count, dtype, dst);
}

void read_slices(const TensorFiles& file, const models::WeightForm& form, int64_t first,
                 int64_t count, DType dtype, void* dst) {
  const int64_t size = graph::size_of(dtype), end = first + count;
  std::string column;
  auto it = std::upper_bound(
      form.begin(), form.end(), first,
      [](int64_t at, const models::WeightSlice& slice) { return at < slice.offset; });
  for (it = it == form.begin() ? it : it - 1; it != form.end() && it->offset < end; ++it) {
    const int64_t from = std::max(first, it->offset);
    const int64_t to = std::min(end, it->offset + it->numel());
    if (to <= from) continue;
    const TensorFiles::Entry entry = file.find(it->name);
    models::for_each_run(*it, from, to - from, [&](const models::WeightRun& run) {
      char* const to_first = static_cast<char*>(dst) + (run.element - first) * size;
      if (run.stride == 1) {
        entry.file->read(*entry.tensor, run.stored, run.count, dtype, to_first);
        return;
      }
      column.resize(static_cast<size_t>(run.count * size));
      entry.file->read(*entry.tensor, run.stored, run.count, dtype, column.data());
      copy_strided(to_first, run.stride, column.data(), 1, run.count, size);
    });
  }
}

void ModelWeights::check_alias(std::string_view param, const WeightSlice& alias) const {
  // f64 holds every supported floating-point type exactly.
  const TensorFiles::Entry entry = file_.find(alias.name);
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

namespace {

/// View of a slice that is one run.
NamedTensor view_of(const NamedTensor& whole, const WeightSlice& slice) {
  NamedTensor view{slice.name, {whole.type.dtype, slice.dims}};
  const int64_t size = graph::size_of(whole.type.dtype);
  if (whole.data != nullptr) {
    view.data = static_cast<const char*>(whole.data) + slice.offset * size;
  } else {
    view.read = [read = whole.read, offset = slice.offset](
                    int64_t first, int64_t count, void* dst) { read(offset + first, count, dst); };
  }
  return view;
}

/// Tensor of a file that is put together from slices of parameters, while it is read.
class Assembled {
 public:
  explicit Assembled(const graph::TensorType& type) : type_(type) {}
  void add(const NamedTensor& whole, const WeightSlice& slice) { parts_.push_back({whole, slice}); }
  /// Reads consecutive ranges; the bytes exist from the first to the last of them.
  void read(int64_t first, int64_t count, void* dst) {
    const int64_t size = graph::size_of(type_.dtype);
    if (bytes_.empty()) {
      assemble(size);
    }
    std::memcpy(dst, bytes_.data() + first * size, static_cast<size_t>(count * size));
    if (first + count == type_.numel()) {
      bytes_ = {};
    }
  }

 private:
  void assemble(int64_t size) {
    bytes_.resize(static_cast<size_t>(type_.numel() * size));
    std::string part;
    for (const auto& [whole, slice] : parts_) {
      const char* from = nullptr;
      if (whole.data != nullptr) {
        from = static_cast<const char*>(whole.data) + slice.offset * size;
      } else {
        part.resize(static_cast<size_t>(slice.numel() * size));
        whole.read(slice.offset, slice.numel(), part.data());
        from = part.data();
      }
      models::for_each_run(
          slice, slice.offset, slice.numel(), [&, first = slice.offset](const auto& run) {
            copy_strided(bytes_.data() + run.stored * size, 1, from + (run.element - first) * size,
                         run.stride, run.count, size);
          });
    }
  }

  const graph::TensorType type_;
  std::vector<std::pair<NamedTensor, WeightSlice>> parts_;
  std::string bytes_;
};

}  // namespace

std::vector<NamedTensor> to_stored(const std::vector<SlicedParameter>& params) {
  std::vector<NamedTensor> list;
  std::map<std::string, std::shared_ptr<Assembled>> assembled;
  for (const auto& [whole, slices] : params) {
    for (const WeightSlice& slice : slices) {
      HOCKET_CHECK(slice.offset + slice.numel() <= whole.type.numel(), "{} does not fit into {}",
                   slice.name, whole.name);
      if (slice.is_whole()) {
        list.push_back(view_of(whole, slice));
        continue;
      }
      std::shared_ptr<Assembled>& tensor = assembled[slice.name];
      if (!tensor) {
        const graph::TensorType type{whole.type.dtype, slice.dims};
        tensor = std::make_shared<Assembled>(type);
        list.push_back({slice.name, type});
        list.back().read = [tensor](int64_t first, int64_t count, void* dst) {
          tensor->read(first, count, dst);
        };
      }
      tensor->add(whole, slice);
    }
  }
  return list;
}

}  // namespace hocket::checkpoint
