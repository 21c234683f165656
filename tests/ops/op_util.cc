// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/op_util.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "tests/compare_util.h"
#include "tests/number_util.h"

namespace hocket::optest {

namespace {

using ops::Fill;

kernels::Backend& cpu() { return *kernels::cpu_backend(); }

void store(const Value& v, std::byte* to) {
  for (size_t i = 0; i < v.v.size(); ++i) {
    test::store_element(v.type.dtype, v.v[i], to + i * static_cast<size_t>(size_of(v.type.dtype)));
  }
}
void load(const std::byte* from, Value& v) {
  for (size_t i = 0; i < v.v.size(); ++i) {
    v.v[i] =
        test::load_element(v.type.dtype, from + i * static_cast<size_t>(size_of(v.type.dtype)));
  }
}

constexpr size_t kGuard = 192;

/// Memory of one operand, at a 64-byte boundary, between guards.
class Operand {
 public:
  Operand(size_t bytes, bool first_kind) : bytes_(bytes), memory_(bytes + 2 * kGuard + 64) {
    auto at = reinterpret_cast<uintptr_t>(memory_.data()) + kGuard;
    data_ = reinterpret_cast<std::byte*>((at + 63) / 64 * 64);
    // All bits set are NaN in every floating-point type and -1 in integers. The other fill is
    // neither.
    fill(first_kind);
    before_.assign(data_ - kGuard, data_);
    after_.assign(data_ + bytes_, data_ + bytes_ + kGuard);
  }
  std::byte* data() { return data_; }
  size_t bytes() const { return bytes_; }
  bool intact() const {
    return std::memcmp(before_.data(), data_ - kGuard, kGuard) == 0 &&
           std::memcmp(after_.data(), data_ + bytes_, kGuard) == 0;
  }

 private:
  void fill(bool first_kind) {
    const size_t all = kGuard + bytes_ + kGuard;
    std::array<std::byte, 256> block;
    for (size_t i = 0; i < block.size(); ++i) {
      block[i] = first_kind ? std::byte{0xff} : static_cast<std::byte>(0x35 ^ i);
    }
    for (size_t at = 0; at < all; at += block.size()) {
      std::memcpy(data_ - kGuard + at, block.data(), std::min(block.size(), all - at));
    }
  }

  size_t bytes_;
  std::vector<std::byte> memory_, before_, after_;
  std::byte* data_;
};

std::vector<TensorType> types_of(std::span<const Value> list) {
  std::vector<TensorType> types;
  for (const Value& v : list) {
    types.push_back(v.type);
  }
  return types;
}

size_t bytes_of(const Value& v) { return v.v.size() * static_cast<size_t>(size_of(v.type.dtype)); }

/// Returns outputs of the right sizes. A routed output has the rows of the routed input (dispatch:
/// one per token and expert; regroup: the capacity of its type).
std::vector<Value> outputs_for(const Op& op, const Attrs& attrs, std::span<const Value> in,
                               const CallOptions& call) {
  if (!call.out.empty()) return call.out;
  std::vector<Value> out;
  int64_t rows = -1;
  for (const Value& v : in) {
    if (v.type.routed() && rows < 0 && op.meaning != ops::Meaning::regroup) {
      rows = static_cast<int64_t>(v.v.size()) / v.type.row_size();
    }
  }
  for (TensorType& t : op.infer(attrs, types_of(in))) {
    int64_t n = t.numel();
    if (t.routed()) {
      n = (rows >= 0 ? rows : t.dims[1] * t.top_k) * t.row_size();
    }
    out.push_back({t, std::vector<double>(static_cast<size_t>(n))});
  }
  return out;
}

std::vector<Value> apply_once(const Op& op, const Attrs& attrs, std::span<const Value> in,
                              const CallOptions& call, bool first_kind) {
  const std::vector<TensorType> in_types = types_of(in);
  std::vector<Value> out = outputs_for(op, attrs, in, call);
  const std::vector<TensorType> out_types = types_of(out);
  std::vector<std::unique_ptr<Operand>> memory_in, memory_out;
  std::vector<kernels::TensorRef> refs_in, refs_out;
  for (size_t i = 0; i < in.size(); ++i) {
    memory_in.push_back(std::make_unique<Operand>(bytes_of(in[i]), first_kind));
    store(in[i], memory_in.back()->data());
    refs_in.push_back({memory_in.back()->data(), &in_types[i]});
  }
  for (size_t o = 0; o < out.size(); ++o) {
    std::byte* shared = nullptr;
    for (auto [from, to] : op.inplace) {
      if (to == static_cast<int>(o)) {
        shared = memory_in[from]->data();
      }
    }
    memory_out.push_back(std::make_unique<Operand>(shared ? 0 : bytes_of(out[o]), first_kind));
    if (call.accumulate >> o & 1) {
      store(call.start.at(o), memory_out.back()->data());
    }
    refs_out.push_back({shared ? shared : memory_out.back()->data(), &out_types[o]});
  }
  const ops::Cost cost = ops::cost_of(op, {attrs, in_types, out_types});
  Operand workspace(static_cast<size_t>(cost.workspace), first_kind);
  const kernels::KernelFn kernel = cpu().find(op.name, kernels::Device::cpu, {in_types, out_types});
  if (!kernel) fail("op test", "{} has no kernel", op.name);
  cpu().enter_thread(call.threads);
  kernel({&attrs, refs_in, refs_out, call.accumulate, workspace.data(), cost.workspace,
          call.piece_offsets});
  for (size_t o = 0; o < out.size(); ++o) {
    load(static_cast<const std::byte*>(refs_out[o].data), out[o]);
  }
  if (!call.guarded) return out;
  EXPECT_TRUE(workspace.intact()) << op.name << " wrote beyond its " << cost.workspace
                                  << " bytes of workspace";
  for (size_t o = 0; o < out.size(); ++o) {
    EXPECT_TRUE(memory_out[o]->intact()) << op.name << " wrote around output " << o;
  }
  for (size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(memory_in[i]->intact()) << op.name << " wrote around input " << i;
    bool inplace = std::any_of(op.inplace.begin(), op.inplace.end(),
                               [&](auto& p) { return p.first == static_cast<int>(i); });
    if (inplace) continue;
    std::vector<std::byte> was(bytes_of(in[i]));
    if (was.empty()) continue;
    store(in[i], was.data());
    EXPECT_EQ(std::memcmp(was.data(), memory_in[i]->data(), was.size()), 0)
        << op.name << " changed input " << i;
  }
  return out;
}

bool same_bits(const Value& a, const Value& b) {
  return std::equal(a.v.begin(), a.v.end(), b.v.begin(), b.v.end(), [](double x, double y) {
    return std::bit_cast<uint64_t>(x) == std::bit_cast<uint64_t>(y);
  });
}

void fill(const Fill& f, Value& value, Rng& rng) {
  const int64_t n = value.type.numel();
  value.v.assign(static_cast<size_t>(n), 0.0);
  auto integer = [&](double lo, double hi) {
    return static_cast<double>(rng.between(static_cast<int64_t>(lo), static_cast<int64_t>(hi)));
  };
  switch (f.kind) {
    case Fill::Kind::normal:
      for (double& x : value.v) {
        x = f.scale * rng.normal();
      }
      break;
    case Fill::Kind::uniform:
      for (double& x : value.v) {
        x = f.lo + (f.hi - f.lo) * rng.uniform();
      }
      break;
    case Fill::Kind::integers:
      for (double& x : value.v) {
        x = integer(f.lo, f.hi);
      }
      break;
    case Fill::Kind::documents:
      for (int64_t t = 0; t < n; ++t) {
        const bool begins = t == 0 || rng.below(4) == 0;
        value.v[t] = begins ? 0 : value.v[t - 1] + 1;
      }
      break;
    case Fill::Kind::counting:
      std::iota(value.v.begin(), value.v.end(), 0.0);
      break;
    case Fill::Kind::halves:
      for (int64_t t = 0; t < n; ++t) {
        value.v[t] = 2 * t >= n ? 1 : 0;
      }
      break;
    case Fill::Kind::targets:
      for (double& x : value.v) {
        x = rng.below(5) == 0 ? -100 : integer(0, f.hi - 1);
      }
      break;
    case Fill::Kind::routes: {
      const int64_t k = value.type.dims.back();
      for (int64_t t = 0; t < n / k; ++t) {
        std::vector<double> experts(static_cast<size_t>(f.hi - f.lo) + 1);
        std::iota(experts.begin(), experts.end(), f.lo);
        rng.shuffle(experts);
        std::copy_n(experts.begin(), k, value.v.begin() + t * k);
      }
      break;
    }
    case Fill::Kind::constant:
      std::fill(value.v.begin(), value.v.end(), f.lo);
      break;
    case Fill::Kind::from_op:
      break;
  }
}

}  // namespace

std::vector<TensorType> Problem::in_types() const { return types_of(inputs()); }
std::vector<TensorType> Problem::out_types() const { return op->infer(attrs, in_types()); }

void run_chain(const Sample& sample, std::vector<Value>& values, bool floats) {
  for (const ops::ChainStep& step : sample.chain) {
    std::vector<Value> in;
    for (int i : step.in) {
      in.push_back(values[i]);
    }
    std::vector<Value> out = apply(ops::find(step.op), step.attrs, in);
    for (size_t o = 0; o < step.out.size(); ++o) {
      if (step.out[o] >= 0 && (floats || !graph::is_floating(out[o].type.dtype))) {
        values[step.out[o]] = std::move(out[o]);
      }
    }
  }
}

Problem make(const Op& op, const Sample& sample, uint64_t seed) {
  Problem p;
  p.op = &op;
  p.sample = &sample;
  p.attrs = sample.attrs;
  p.num_inputs =
      sample.num_inputs < 0 ? sample.types.size() : static_cast<size_t>(sample.num_inputs);
  p.name = fmt::format("{} {} seed {}", op.name, sample.name, seed);
  Rng rng(seed * 1000003 + hash_name(p.name));
  for (size_t i = 0; i < sample.types.size(); ++i) {
    p.values.push_back({sample.types[i], {}});
    fill(sample.fills.at(i), p.values.back(), rng);
  }
  run_chain(sample, p.values);
  for (size_t i = 0; i < sample.types.size(); ++i) {
    if (!(p.values[i].type == sample.types[i])) {
      fail("op test", "{}: value {} is {} by its chain; the sample says {}", p.name, i,
           graph::to_string(p.values[i].type), graph::to_string(sample.types[i]));
    }
  }
  return p;
}

namespace {

/// Returns all ways to give each of `count` operands one of `types`, ordered by use of the first
/// types.
std::vector<std::vector<DType>> ways_to_type(size_t count, const std::vector<DType>& types) {
  std::vector<std::vector<size_t>> ways = {{}};
  for (size_t i = 0; i < count; ++i) {
    std::vector<std::vector<size_t>> longer;
    for (const std::vector<size_t>& way : ways) {
      for (size_t type = 0; type < types.size(); ++type) {
        longer.push_back(way);
        longer.back().push_back(type);
      }
    }
    ways = std::move(longer);
  }
  std::stable_sort(ways.begin(), ways.end(), [](const auto& a, const auto& b) {
    const auto far = [](const auto& way) {
      return std::accumulate(way.begin(), way.end(), size_t{0},
                             [](size_t sum, size_t type) { return sum + type * type; });
    };
    return far(a) < far(b);
  });
  std::vector<std::vector<DType>> list;
  for (const std::vector<size_t>& way : ways) {
    list.emplace_back();
    for (size_t type : way) {
      list.back().push_back(types[type]);
    }
  }
  return list;
}

void round_to(DType dtype, Value& value) {
  value.type.dtype = dtype;
  std::byte element[8];
  for (double& x : value.v) {
    test::store_element(dtype, x, element);
    x = test::load_element(dtype, element);
  }
}

}  // namespace

bool to_dtype(Problem& problem, DType dtype) {
  std::vector<size_t> doubles;
  for (size_t i = 0; i < problem.num_inputs; ++i) {
    if (problem.values[i].type.dtype == DType::f64) {
      doubles.push_back(i);
    }
  }
  const Attrs attrs = problem.attrs;
  for (const auto& [key, value] : attrs.items()) {
    if (const auto* text = std::get_if<std::string>(&value); text && text->substr(0, 3) == "f64") {
      problem.attrs.set(key, graph::to_string(dtype) + text->substr(3));
    }
  }
  // Losses, norms and hyperparameters stay f64, where the op's rule allows.
  std::vector<DType> choices = {dtype, DType::f64};
  if (graph::bits_of(dtype) < 32) {
    choices.insert(choices.begin() + 1, DType::f32);
  }
  for (const std::vector<DType>& chosen : ways_to_type(doubles.size(), choices)) {
    std::vector<TensorType> types = problem.in_types();
    for (size_t d = 0; d < doubles.size(); ++d) {
      types[doubles[d]].dtype = chosen[d];
    }
    std::vector<TensorType> out;
    try {
      out = problem.op->infer(problem.attrs, types);
    } catch (const Error&) {
      continue;
    }
    for (size_t d = 0; d < doubles.size(); ++d) {
      round_to(chosen[d], problem.values[doubles[d]]);
    }
    types.insert(types.end(), out.begin(), out.end());
    return std::any_of(types.begin(), types.end(),
                       [&](const TensorType& type) { return type.dtype == dtype; });
  }
  return false;
}

std::vector<Value> apply(const Op& op, const Attrs& attrs, std::span<const Value> in,
                         const CallOptions& call) {
  std::vector<Value> out = apply_once(op, attrs, in, call, true);
  if (!call.guarded) return out;
  std::vector<Value> again = apply_once(op, attrs, in, call, false);
  for (size_t o = 0; o < out.size(); ++o) {
    EXPECT_TRUE(same_bits(out[o], again[o]))
        << op.name << ": output " << o << " depends on memory that holds nothing yet";
  }
  return out;
}

namespace {

/// A graph of one node. Its backward nodes run when they are emitted.
class Eager : public ops::GradContext {
 public:
  Eager(const Problem& p, const std::vector<Value>& out, const std::vector<Value>& grad_out,
        std::vector<bool> needs, const std::vector<Value>& before)
      : op_(*p.op),
        needs_(std::move(needs)),
        grad_(p.num_inputs, graph::kNone),
        asked_(out.size(), false) {
    node_.op = p.op->name;
    node_.attrs = p.attrs;
    for (const Value& v : p.inputs()) {
      node_.in.push_back(add(v));
    }
    for (const Value& v : out) {
      node_.out.push_back(add(v));
    }
    for (const Value& v : grad_out) {
      grad_out_.push_back(v.v.empty() ? graph::kNone : add(v));
    }
    for (size_t i = 0; i < before.size(); ++i) {
      if (!before[i].v.empty()) {
        grad_[i] = add(before[i]);
      }
    }
  }

  const graph::Node& node() const override { return node_; }
  const graph::Tensor& tensor(graph::TensorId id) const override {
    return tensors_.at(static_cast<size_t>(id));
  }
  graph::TensorId grad_out(int i) const override {
    asked_.at(static_cast<size_t>(i)) = true;
    return grad_out_.at(static_cast<size_t>(i));
  }
  bool needs(int i) const override { return needs_.at(static_cast<size_t>(i)); }

  std::vector<graph::TensorId> emit(std::string op, Attrs attrs,
                                    std::vector<graph::TensorId> in) override {
    return run(op, attrs, in, {});
  }
  std::vector<graph::TensorId> emit_grad(std::string op, Attrs attrs,
                                         std::vector<graph::TensorId> in, int input,
                                         int out) override {
    graph::TensorId& sum = grad_.at(static_cast<size_t>(input));
    if (!ops::find(op).accumulates.contains(static_cast<size_t>(out)) || sum == graph::kNone) {
      auto made = run(op, attrs, in, {});
      add_grad(input, made[out]);
      return made;
    }
    CallOptions call;
    call.accumulate = 1u << out;
    call.start.resize(static_cast<size_t>(out) + 1);
    call.start.back() = values_[sum];
    auto made = run(op, attrs, in, call);
    sum = made[out];
    return made;
  }
  void add_grad(int i, graph::TensorId grad) override {
    if (!needs(i)) return;
    graph::TensorId& sum = grad_.at(static_cast<size_t>(i));
    sum = sum == graph::kNone ? grad : run(ops::of(ops::Meaning::sum).name, {}, {sum, grad}, {})[0];
  }

  Gradient result() const {
    Gradient g;
    g.asked = asked_;
    for (size_t i = 0; i < grad_.size(); ++i) {
      g.grad.push_back({});
      if (grad_[i] != graph::kNone) {
        g.grad.back() = values_[grad_[i]];
      }
    }
    return g;
  }

 private:
  graph::TensorId add(const Value& v) {
    graph::Tensor t;
    t.type = v.type;
    t.name = "t" + std::to_string(tensors_.size());
    tensors_.push_back(std::move(t));
    values_.push_back(v);
    return static_cast<graph::TensorId>(tensors_.size() - 1);
  }
  std::vector<graph::TensorId> run(const std::string& op, const Attrs& attrs,
                                   const std::vector<graph::TensorId>& in,
                                   const CallOptions& call) {
    std::vector<Value> inputs;
    for (graph::TensorId id : in) {
      if (id < 0) fail("op test", "{} of {} lacks a gradient that it needs", op, node_.op);
      inputs.push_back(values_.at(static_cast<size_t>(id)));
    }
    std::vector<graph::TensorId> ids;
    for (const Value& v : apply(ops::find(op), attrs, inputs, call)) {
      ids.push_back(add(v));
    }
    return ids;
  }

  const Op& op_;
  graph::Node node_;
  std::vector<graph::Tensor> tensors_;
  std::vector<Value> values_;
  std::vector<graph::TensorId> grad_out_;
  std::vector<bool> needs_;
  std::vector<graph::TensorId> grad_;
  mutable std::vector<bool> asked_;
};

}  // namespace

Gradient gradient(const Problem& p, const std::vector<Value>& out,
                  const std::vector<Value>& grad_out, const std::vector<bool>& needs,
                  const std::vector<Value>& before) {
  Eager context(p, out, grad_out, needs, before);
  p.op->grad(context);
  return context.result();
}

RowKeys row_keys(const Problem& p) {
  RowKeys keys;
  for (size_t i = 0; i < p.values.size(); ++i) {
    if (p.sample->fills[i].kind != Fill::Kind::routes) continue;
    const int64_t k = p.values[i].type.dims.back();
    for (size_t j = 0; j < p.values[i].v.size(); ++j) {
      keys.push_back({static_cast<int64_t>(p.values[i].v[j]), static_cast<int64_t>(j) / k});
    }
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

namespace {

/// View of a tensor's storage as [outer, dim, inner]. Rows of a routed tensor are one dim.
struct Blocks {
  int64_t outer = 1, dim = 1, inner = 1;
};
Blocks blocks(const TensorType& type, int64_t rows, int d) {
  graph::Dims dims = type.dims;
  if (type.routed()) {
    dims.erase(dims.begin());
    dims[0] = rows;
    d -= 1;
  }
  Blocks b;
  for (int i = 0; i < static_cast<int>(dims.size()); ++i) {
    (i < d ? b.outer : i == d ? b.dim : b.inner) *= dims[i];
  }
  return b;
}

int64_t rows_of(const Value& v) {
  return v.type.routed() ? static_cast<int64_t>(v.v.size()) / v.type.row_size() : 0;
}

/// Returns the half, 0 or 1, to which a row belongs if dim 0 (experts) or 1 (tokens) is split.
int part_of(const std::pair<int64_t, int64_t>& key, const TensorType& whole, int dim) {
  const int64_t at = dim == 0 ? key.first : key.second;
  return at * 2 >= whole.dims[dim];
}

}  // namespace

Value cut(const Value& whole, Placement placement, int part, const RowKeys& keys, uint64_t seed) {
  Value v{whole.type, {}};
  if (placement.is_replicate()) return whole;
  if (placement.is_partial()) {
    Rng rng(seed);
    for (double x : whole.v) {
      double a = graph::is_floating(whole.type.dtype)
                     ? rng.normal()
                     : static_cast<double>(rng.between(0, static_cast<int64_t>(x)));
      v.v.push_back(part == 0 ? a : x - a);
    }
    return v;
  }
  const int d = placement.dim();
  v.type.dims[d] /= 2;
  if (whole.type.routed() && d < 2) {
    const int64_t row = whole.type.row_size();
    for (size_t r = 0; r < keys.size(); ++r) {
      if (part_of(keys[r], whole.type, d) == part) {
        v.v.insert(v.v.end(), whole.v.begin() + static_cast<int64_t>(r) * row,
                   whole.v.begin() + static_cast<int64_t>(r + 1) * row);
      }
    }
    return v;
  }
  const Blocks b = blocks(whole.type, rows_of(whole), d);
  for (int64_t o = 0; o < b.outer; ++o) {
    auto begin = whole.v.begin() + (o * b.dim + part * (b.dim / 2)) * b.inner;
    v.v.insert(v.v.end(), begin, begin + b.dim / 2 * b.inner);
  }
  return v;
}

Value combine(const std::vector<Value>& parts, Placement placement, const TensorType& whole,
              const RowKeys& keys) {
  Value v{whole, parts[0].v};
  if (placement.is_replicate()) {
    EXPECT_TRUE(same_bits(parts[0], parts[1])) << "replicas differ";
    return v;
  }
  if (placement.is_partial()) {
    EXPECT_EQ(parts[0].v.size(), parts[1].v.size());
    for (size_t i = 0; i < std::min(v.v.size(), parts[1].v.size()); ++i) {
      v.v[i] = placement.monoid() == graph::Monoid::max ? std::max(v.v[i], parts[1].v[i])
                                                        : v.v[i] + parts[1].v[i];
    }
    return v;
  }
  const int d = placement.dim();
  v.v.clear();
  if (whole.routed() && d < 2) {
    const int64_t row = whole.row_size();
    int64_t next[2] = {0, 0};
    for (const auto& key : keys) {
      const int part = part_of(key, whole, d);
      const auto& from = parts[part].v;
      const int64_t at = next[part]++ * row;
      if (at + row > static_cast<int64_t>(from.size())) return {whole, {}};
      v.v.insert(v.v.end(), from.begin() + at, from.begin() + at + row);
    }
    return v;
  }
  const Blocks b = blocks(parts[0].type, rows_of(parts[0]), d);
  for (int64_t o = 0; o < b.outer; ++o) {
    for (const Value& p : parts) {
      auto begin = p.v.begin() + o * b.dim * b.inner;
      v.v.insert(v.v.end(), begin, begin + b.dim * b.inner);
    }
  }
  return v;
}

std::vector<size_t> places(const TensorType& whole, const std::string& letters, const Parts& parts,
                           const Sizes& sizes, const RowKeys& keys, TensorType* local) {
  std::vector<std::vector<int64_t>> index(whole.dims.size());
  *local = whole;
  for (size_t dim = 0; dim < whole.dims.size(); ++dim) {
    const auto part = dim < letters.size() ? parts.find(letters[dim]) : parts.end();
    if (part == parts.end()) {
      index[dim].resize(static_cast<size_t>(whole.dims[dim]));
      std::iota(index[dim].begin(), index[dim].end(), 0);
      continue;
    }
    const int64_t each = whole.dims[dim] / std::max<int64_t>(1, sizes.at(letters[dim]));
    for (int64_t i : part->second) {
      for (int64_t k = 0; k < each; ++k) {
        index[dim].push_back(i * each + k);
      }
    }
    local->dims[dim] = static_cast<int64_t>(index[dim].size());
  }
  // Rows of a routed tensor are one dim: the existing ones, in (expert, token) order.
  std::vector<size_t> at{0};
  size_t dim = 0;
  if (whole.routed()) {
    at.clear();
    for (int64_t expert : index[0]) {
      for (int64_t token : index[1]) {
        const auto row = std::find(keys.begin(), keys.end(), std::pair{expert, token});
        if (row != keys.end()) {
          at.push_back(static_cast<size_t>(row - keys.begin()));
        }
      }
    }
    dim = 2;
  }
  for (; dim < whole.dims.size(); ++dim) {
    std::vector<size_t> next;
    for (size_t outer : at) {
      for (int64_t i : index[dim]) {
        next.push_back(outer * static_cast<size_t>(whole.dims[dim]) + static_cast<size_t>(i));
      }
    }
    at = std::move(next);
  }
  return at;
}

Value gather(const Value& whole, const std::string& letters, const Parts& parts, const Sizes& sizes,
             const RowKeys& keys) {
  Value part;
  for (size_t at : places(whole.type, letters, parts, sizes, keys, &part.type)) {
    part.v.push_back(whole.v.at(at));
  }
  return part;
}

double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  return test::relative_l2(a, b);
}

std::string to_string(const ops::AxisSignature& s) {
  std::string text;
  for (Placement p : s.in) {
    text += graph::to_string(p) + " ";
  }
  text += "->";
  for (Placement p : s.out) {
    text += " " + graph::to_string(p);
  }
  return text;
}

std::vector<Notation> notations(const Op& op) {
  std::vector<Notation> list;
  const std::string text = op.layout.notation;
  if (text == "*") return list;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('|', begin), text.size());
    Notation n;
    std::vector<std::string>* side = &n.in;
    std::string word;
    auto take = [&] {
      word = word.substr(0, word.find('/'));
      side->push_back(word == "." ? "" : word);
      word.clear();
    };
    for (size_t i = begin; i < end; ++i) {
      if (text[i] == ',') {
        take();
      } else if (text[i] == '-' && i + 1 < end && text[i + 1] == '>') {
        take();
        side = &n.out;
        ++i;
      } else {
        word += text[i];
      }
    }
    take();
    list.push_back(n);
    begin = end + 1;
  }
  return list;
}

const Notation* matching(const std::vector<Notation>& list, std::span<const TensorType> in,
                         std::span<const TensorType> out) {
  auto fits = [](const std::vector<std::string>& letters, std::span<const TensorType> types) {
    if (letters.size() != types.size()) return false;
    for (size_t i = 0; i < types.size(); ++i) {
      if (letters[i].empty() ? types[i].numel() != 1 : letters[i].size() != types[i].dims.size()) {
        return false;
      }
    }
    return true;
  };
  for (const Notation& n : list) {
    if (fits(n.in, in) && fits(n.out, out)) return &n;
  }
  return nullptr;
}

}  // namespace hocket::optest
