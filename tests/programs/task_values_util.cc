// SPDX-License-Identifier: Apache-2.0
#include "tests/programs/task_values_util.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/backend.h"
#include "ops/op.h"
#include "program/views.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::test {

using check::ExprId;
using check::Held;
using graph::Run;

namespace {

double number_at(const graph::TensorType& type, const std::byte* data, int64_t index) {
  const auto read = [&](auto value) {
    std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(value)), sizeof(value));
    return static_cast<double>(value);
  };
  switch (type.dtype) {
    case DType::f64:
      return read(double{});
    case DType::f32:
      return read(float{});
    case DType::i32:
      return read(int32_t{});
    case DType::i64:
      return read(int64_t{});
    default:
      throw std::runtime_error("an element type that these tests have no numbers of");
  }
}

void find_norm(Whole* whole) {
  for (const double number : whole->numbers) {
    whole->norm += number * number;
  }
  whole->norm = std::sqrt(whole->norm);
}

void read_numbers(Whole* whole) {
  const int64_t count = static_cast<int64_t>(whole->bytes.size()) / size_of(whole->type.dtype);
  for (int64_t i = 0; i < count; ++i) {
    whole->numbers.push_back(number_at(whole->type, whole->bytes.data(), i));
  }
  find_norm(whole);
}

}  // namespace

const Whole* TermValues::of(const check::Reference& reference, ExprId expr) {
  const auto found = known_.find(expr);
  if (found != known_.end()) return found->second.get();
  return make(reference, expr);
}

const Whole* TermValues::make(const check::Reference& reference, ExprId expr) {
  using Kind = check::Expr::Kind;
  if (expr <= check::kZero) return nullptr;
  const check::Expr term = reference.terms[expr];
  if (term.kind == Kind::output) {
    apply(reference, term.a);
    return known_[expr].get();
  }
  auto whole = std::make_unique<Whole>();
  if (term.kind == Kind::tensor || term.kind == Kind::input) {
    const graph::Tensor& tensor = reference.graph().tensor(term.a);
    whole->type = tensor.type;
    whole->bytes = values_of(tensor, term.kind == Kind::input ? term.b : program::kNone, seed_);
    read_numbers(whole.get());
  } else if (term.kind == Kind::sum) {
    for (const ExprId part : reference.terms.terms_of(expr)) {
      const Whole* const one = of(reference, part);
      if (!one) return known_[expr].get();
      whole->type = one->type;
      whole->numbers.resize(one->numbers.size());
      for (size_t i = 0; i < one->numbers.size(); ++i) {
        whole->numbers[i] += one->numbers[i];
      }
    }
    find_norm(whole.get());
    whole->bytes.resize(whole->numbers.size() * 8);
    std::memcpy(whole->bytes.data(), whole->numbers.data(), whole->bytes.size());
    if (whole->type.dtype != DType::f64) return known_[expr].get();  // sums of counts: not read on
  } else {
    return known_[expr].get();
  }
  known_[expr] = std::move(whole);
  return known_[expr].get();
}

void TermValues::apply(const check::Reference& reference, check::AppId id) {
  // Runs the op's kernel on whole operands. Operands updated in place are copies.
  const check::Application app = reference.terms.app(id);
  const check::OpKey& key = reference.keys[app.key];
  std::vector<graph::TensorType> in, out;
  std::vector<std::vector<std::byte>> read, made;
  for (const ExprId expr : reference.terms.inputs(id)) {
    const Whole* const whole = of(reference, expr);
    in.push_back(reference.types[reference.terms[expr].type]);
    read.push_back(whole ? whole->bytes
                         : std::vector<std::byte>(static_cast<size_t>(in.back().bytes())));
    if (!whole && expr != check::kZero) return;
  }
  for (int32_t i = 0; i < app.num_out; ++i) {
    out.push_back(reference.types[reference.terms[reference.terms.output(id, i)].type]);
    made.emplace_back(static_cast<size_t>(out.back().bytes()));
  }
  const kernels::KernelFn kernel =
      kernels::cpu_backend()->find(key.op, kernels::Device::cpu, {in, out});
  if (!kernel) return;
  for (const auto& [from, to] : key.rules->inplace) {
    made[static_cast<size_t>(to)] = read[static_cast<size_t>(from)];
  }
  std::vector<kernels::TensorRef> ins, outs;
  for (size_t i = 0; i < in.size(); ++i) {
    ins.push_back({read[i].data(), &in[i]});
  }
  for (size_t i = 0; i < out.size(); ++i) {
    outs.push_back({made[i].data(), &out[i]});
  }
  for (const auto& [from, to] : key.rules->inplace) {
    ins[static_cast<size_t>(from)].data = made[static_cast<size_t>(to)].data();
  }
  std::vector<std::byte> workspace(
      static_cast<size_t>(ops::workspace_bytes(key.op, key.attrs, in, out)));
  kernels::KernelArgs args;
  args.attrs = &key.attrs;
  args.in = ins;
  args.out = outs;
  args.workspace = workspace.data();
  args.workspace_bytes = static_cast<int64_t>(workspace.size());
  kernel(args);
  for (int32_t i = 0; i < app.num_out; ++i) {
    auto whole = std::make_unique<Whole>();
    whole->type = out[static_cast<size_t>(i)];
    whole->bytes = std::move(made[static_cast<size_t>(i)]);
    read_numbers(whole.get());
    known_[reference.terms.output(id, i)] = std::move(whole);
  }
}

ExpectedOutputs::ExpectedOutputs(check::Checker& checker, const program::Program& program,
                                 TermValues& terms) {
  check::CheckOptions options;
  options.on_write = [&](const check::OutputValue& written) { note(written, program, terms); };
  accepted_ = checker.check(program, options).ok();
}

namespace {

/// Returns the experts that the tokens of a routed term chose, [tokens, k]; null if unknown.
const Whole* experts_of(const check::Reference& reference, ExprId expr, TermValues& terms) {
  const check::Expr& term = reference.terms[reference.terms.terms_of(expr)[0]];
  if (term.kind != check::Expr::Kind::output) return nullptr;
  const check::AppId route = reference.terms.app(term.a).route;
  return route < 0 ? nullptr : terms.of(reference, reference.terms.inputs(route)[0]);
}

/// Returns whether the term's elements are row numbers, which depend on the rank.
bool counts_rows(const check::Reference& reference, ExprId expr) {
  const check::Expr& term = reference.terms[expr];
  if (term.kind != check::Expr::Kind::output) return false;
  return term.b == reference.keys[reference.terms.app(term.a).key].rules->routing.row_of;
}

/// Returns the numbers in a list of runs.
std::vector<int64_t> numbers_in(const std::vector<Run>& runs) {
  std::vector<int64_t> list;
  for (const Run& run : runs) {
    for (int64_t i = 0; i < run.length; ++i) {
      list.push_back(run.begin + i);
    }
  }
  return list;
}

/// Returns the rows of the whole routed tensor that are held here, ordered by expert and token.
std::vector<int64_t> rows_of(const Held& held, const Whole& experts) {
  const int64_t tokens = experts.type.dims[0];
  const int64_t chosen = experts.type.dims[1];
  std::map<std::pair<int64_t, int64_t>, int64_t> row;
  for (int64_t expert = 0; expert < held.dims[0].size; ++expert) {
    for (int64_t token = 0; token < tokens; ++token) {
      for (int64_t k = 0; k < chosen; ++k) {
        if (static_cast<int64_t>(experts.numbers[static_cast<size_t>(token * chosen + k)]) ==
            expert) {
          row.emplace(std::pair(expert, token), static_cast<int64_t>(row.size()));
        }
      }
    }
  }
  std::vector<int64_t> rows;
  for (const int64_t expert : numbers_in(held.dims[0].indices)) {
    for (const int64_t token : numbers_in(held.dims[1].indices)) {
      if (const auto found = row.find({expert, token}); found != row.end()) {
        rows.push_back(found->second);
      }
    }
  }
  return rows;
}

}  // namespace

/// Returns the indices in the whole of the elements held, in memory order.
std::vector<int64_t> ExpectedOutputs::indices(const Held& held, const Whole& whole,
                                              const Whole* experts) {
  std::vector<int64_t> list{0};
  const auto next = [&](int64_t size, const std::vector<int64_t>& chosen) {
    std::vector<int64_t> longer;
    for (const int64_t before : list) {
      for (const int64_t index : chosen) {
        longer.push_back(before * size + index);
      }
    }
    list = std::move(longer);
  };
  const bool routed = whole.type.routed();
  if (routed) {
    next(0, rows_of(held, *experts));
  }
  for (size_t dim = routed ? 2 : 0; dim < held.dims.size(); ++dim) {
    next(held.dims[dim].size, numbers_in(held.dims[dim].indices));
  }
  return list;
}

void ExpectedOutputs::note(const check::OutputValue& written, const program::Program& program,
                           TermValues& terms) {
  // Skips lossy and unfinished values, and values of no tensor; compares zeros. A collective
  // between classes is visited once per sort of instance; all visits agree, and the last one is
  // kept.
  const check::TaskRef ref = written.task;
  auto& by_rank = expected_[{ref.cls.value(), ref.task.value(), written.output}];
  by_rank.clear();
  if (!written.exact) return;
  for (const int32_t rank : program.ranks_of(ref.cls)) {
    const std::vector<Held> list = written.at(rank);
    const bool sum = list.size() > 1 && list[0].elements.length < 0;
    Expected expected;
    bool complete = !list.empty() && !sum;
    for (const Held& held : list) {
      if (!complete) break;
      if (held.term == check::kZero) {
        complete = held.elements.length >= 0;  // of a whole buffer: WrittenValues says nothing
        expected.at.resize(expected.at.size() +
                           static_cast<size_t>(std::max<int64_t>(held.elements.length, 0)));
        continue;
      }
      const Whole* const whole = terms.of(written.reference, held.term);
      const Whole* experts = nullptr;
      complete = whole && held.complete() && !counts_rows(written.reference, held.term) &&
                 held.dims.size() == whole->type.dims.size();
      if (complete && whole->type.routed()) {
        experts = experts_of(written.reference, held.term, terms);
        complete = experts != nullptr;
      }
      if (!complete) break;
      const std::vector<int64_t> all = indices(held, *whole, experts);
      const bool some = held.elements.length >= 0;
      const auto from = all.begin() + (some ? held.elements.begin : 0);
      const auto to = some ? from + held.elements.length : all.end();
      for (auto index = from; index != to; ++index) {
        expected.at.emplace_back(whole, *index);
      }
    }
    if (!complete) continue;
    ++values_;
    elements_ += static_cast<int64_t>(expected.at.size());
    by_rank[rank] = std::move(expected);
  }
}

std::string ExpectedOutputs::compare(int32_t rank, program::ClassId cls, program::TaskId task,
                                     size_t output, const graph::TensorType& type, const void* data,
                                     const std::vector<int64_t>& strides) const {
  const auto written = expected_.find({cls.value(), task.value(), output});
  if (written == expected_.end()) return "";
  const auto found = written->second.find(rank);
  if (found == written->second.end()) return "";
  const auto& expected = found->second.at;
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& [whole, index] = expected[i];
    int64_t place = static_cast<int64_t>(i);
    if (!strides.empty()) {
      int64_t rest = place;
      place = 0;
      for (size_t dim = type.dims.size(); dim-- > 0;) {
        place += rest % type.dims[dim] * strides[dim];
        rest /= type.dims[dim];
      }
    }
    const double got = number_at(type, static_cast<const std::byte*>(data), place);
    const double want = whole ? whole->numbers[static_cast<size_t>(index)] : 0;
    if (got == want) continue;  // infinite ones, too
    error += (got - want) * (got - want);
    norm = std::max(norm, whole ? whole->norm : 0);
  }
  if (error == 0 || std::sqrt(error) <= 1e-10 * norm + 1e-13) return "";
  return fmt::format("rank {}, class {}, task {}, output {}: differs by {}, of {}", rank, cls, task,
                     output, std::sqrt(error), norm);
}

}  // namespace hocket::test
