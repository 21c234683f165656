// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/comm_util.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "tests/number_util.h"

namespace hocket::comm::test {

namespace {

using graph::DType;

bool is_short(DType dtype) { return dtype == DType::bf16 || dtype == DType::f16; }

template <typename Fn>
auto with(DType dtype, Fn fn) {
  if (dtype == DType::f32) return fn(float{});
  if (dtype == DType::f64) return fn(double{});
  if (dtype == DType::i32) return fn(int32_t{});
  return fn(int64_t{});
}

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes b(values.size() * sizeof(T));
  if (!b.empty()) {
    std::memcpy(b.data(), values.data(), b.size());
  }
  return b;
}

/// Returns the type of the whole on an axis of n ranks, for a part with this placement.
TensorType whole_type(TensorType part, Placement p, int64_t n) {
  if (p.is_split()) {
    part.dims[p.dim()] *= n;
  }
  return part;
}

/// Dense value: the whole, and its parts under a placement.
struct Dense {
  TensorType type;
  Bytes whole;
  std::vector<Bytes> parts;
};

/// Returns the part of member i. `outer`: dim 0 is that many runs, with a block of each for every
/// member.
Bytes part_of(Dense& d, Placement p, int64_t n, int64_t i, int64_t outer = 1) {
  if (!p.is_split()) return d.whole;
  TensorType piece = d.type;
  piece.dims[p.dim()] /= n;
  int64_t dim = p.dim();
  if (outer > 1 && dim == 0) {
    piece.dims[0] /= outer;
    piece.dims.insert(piece.dims.begin(), outer);
    dim = 1;
  }
  Bytes b(static_cast<size_t>(piece.bytes()));
  slice(piece, dim, n, i, d.whole, b, true);
  return b;
}

Dense random_dense(const TensorType& part, Placement p, int64_t n, graph::Monoid monoid, Rng& rng) {
  Dense d;
  d.type = whole_type(part, p, n);
  if (p.is_partial()) {
    std::vector<const Bytes*> addends;
    for (int64_t i = 0; i < n; ++i) {
      d.parts.push_back(random_tensor(d.type, rng));
    }
    for (const Bytes& b : d.parts) {
      addends.push_back(&b);
    }
    d.whole = sum(addends, d.type.dtype, monoid);
    return d;
  }
  d.whole = random_tensor(d.type, rng);
  for (int64_t i = 0; i < n; ++i) {
    d.parts.push_back(part_of(d, p, n, i));
  }
  return d;
}

/// Routed value: the existing (expert, token) pairs in order, with a row each.
struct Routed {
  TensorType type;
  std::vector<std::pair<int64_t, int64_t>> rows;
  Bytes data;
  int64_t row_bytes = 0;
};

Routed random_routed(const TensorType& type, Rng& rng) {
  Routed r;
  r.type = type;
  r.row_bytes = type.row_size() * size_of(type.dtype);
  std::set<std::pair<int64_t, int64_t>> exist;
  const int64_t experts = type.dims[0], tokens = type.dims[1];
  const bool one_expert = rng.below(4) == 0;
  for (int64_t t = 0; t < tokens; ++t) {
    if (rng.below(5) == 0) {
      continue;  // a token without experts
    }
    std::vector<int64_t> chosen(static_cast<size_t>(experts));
    std::iota(chosen.begin(), chosen.end(), 0);
    if (!one_expert) {
      rng.shuffle(chosen);
    }
    for (int32_t k = 0; k < std::min<int64_t>(type.top_k, experts); ++k) {
      exist.insert({chosen[k], t});
    }
  }
  r.rows.assign(exist.begin(), exist.end());
  r.data.resize(r.rows.size() * static_cast<size_t>(r.row_bytes));
  for (std::byte& b : r.data) {
    b = static_cast<std::byte>(rng.below(256));
  }
  return r;
}

/// Returns the rows of member i under a placement of the n members; `outer` as in part_of.
Bytes rows_of(const Routed& r, Placement p, int64_t n, int64_t i, int64_t outer) {
  Bytes b;
  for (size_t k = 0; k < r.rows.size(); ++k) {
    const int64_t at = !p.is_split() ? 0 : p.dim() == 0 ? r.rows[k].first : r.rows[k].second;
    const int64_t run = p.is_split() ? r.type.dims[p.dim()] / (p.dim() == 0 ? outer : 1) : 0;
    if (p.is_split() && at % run / (run / n) != i) continue;
    const auto from = r.data.begin() + static_cast<int64_t>(k) * r.row_bytes;
    b.insert(b.end(), from, from + r.row_bytes);
  }
  return b;
}

/// Returns the rows per block of tokens and expert.
std::vector<int64_t> sizes_of(const Routed& r, int64_t n) {
  const int64_t experts = r.type.dims[0], block = r.type.dims[1] / n;
  std::vector<int64_t> sizes(static_cast<size_t>(n * experts), 0);
  for (auto [expert, token] : r.rows) {
    ++sizes[token / block * experts + expert];
  }
  return sizes;
}

std::string placement_text(Placement p) {
  if (p.is_partial()) return "`P`";
  return p.is_split() ? fmt::format("`S({})`", p.dim()) : "`B`";
}

/// Prints a placement of the op's movement, with the attribute's name for the dim.
std::string moved_text(bool split, bool partial, const char* dim) {
  if (split) return fmt::format("`S({})`", dim ? dim : "0");
  return placement_text(partial ? Placement::partial() : Placement::replicate());
}

}  // namespace

Bytes random_tensor(const TensorType& type, Rng& rng) {
  Bytes b(static_cast<size_t>(type.bytes()));
  // Random numbers repeat with a prime period, so that parts moved by whole rows differ.
  constexpr int64_t kDrawn = 4093;
  const int64_t drawn = std::min(type.numel(), kDrawn);
  size_t size = 2;
  if (is_short(type.dtype)) {
    for (int64_t i = 0; i < drawn; ++i) {
      hocket::test::store_element(type.dtype, rng.normal(), b.data() + i * 2);
    }
  } else {
    with(type.dtype, [&](auto zero) {
      using T = decltype(zero);
      size = sizeof(T);
      for (int64_t i = 0; i < drawn; ++i) {
        const T x = std::is_floating_point_v<T> ? static_cast<T>(rng.normal())
                                                : static_cast<T>(rng.between(-1000, 1000));
        std::memcpy(b.data() + static_cast<size_t>(i) * sizeof(T), &x, sizeof(T));
      }
    });
  }
  const size_t period = static_cast<size_t>(drawn) * size;
  for (size_t at = period; at < b.size(); at += period) {
    std::memcpy(b.data() + at, b.data(), std::min(period, b.size() - at));
  }
  return b;
}

Bytes sum(const std::vector<const Bytes*>& parts, DType dtype, graph::Monoid monoid) {
  Bytes total = *parts[0];
  if (is_short(dtype)) {
    for (size_t at = 0; at < total.size(); at += 2) {
      float s = 0;  // rounded once
      for (size_t i = 0; i < parts.size(); ++i) {
        const auto x = static_cast<float>(hocket::test::load_element(dtype, parts[i]->data() + at));
        s = i == 0 || (monoid == graph::Monoid::max && x > s) ? x : s;
        s += i > 0 && monoid != graph::Monoid::max ? x : 0;
      }
      hocket::test::store_element(dtype, s, total.data() + at);
    }
    return total;
  }
  with(dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t at = 0; at < total.size(); at += sizeof(T)) {
      T s = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        T x;
        std::memcpy(&x, parts[i]->data() + at, sizeof(T));
        if (i == 0) {
          s = x;
        } else {
          s = monoid == graph::Monoid::max ? std::max(s, x) : static_cast<T>(s + x);
        }
      }
      std::memcpy(total.data() + at, &s, sizeof(T));
    }
  });
  return total;
}

void slice(const TensorType& piece_type, int64_t dim, int64_t n, int64_t i, Bytes& whole,
           Bytes& piece, bool take) {
  int64_t outer = 1, inner = size_of(piece_type.dtype);
  for (int64_t d = 0; d < static_cast<int64_t>(piece_type.dims.size()); ++d) {
    (d < dim ? outer : inner) *= piece_type.dims[d];
  }
  for (int64_t o = 0; o < outer; ++o) {
    std::byte* w = whole.data() + (o * n + i) * inner;
    std::byte* p = piece.data() + o * inner;
    std::memcpy(take ? p : w, take ? w : p, static_cast<size_t>(inner));
  }
}

Case make_case(const Op& op, const Sample& sample, int64_t members, int64_t extra, Rng& rng) {
  // Every moved operand is first made as a whole value. A member contributes its part under the
  // placement before the movement, and must get its part under the placement after it. Row counts
  // and sizes of an exchange are derived from the values.
  const int64_t n = members;
  Case c;
  c.op = &op;
  c.attrs = sample.attrs;
  c.in_types = sample.in;
  if (extra > 1 && op.takes != Takes::counts) {
    for (size_t i = 0; i < (op.needs_sizes ? 1 : c.in_types.size()); ++i) {
      c.in_types[i].dims.push_back(extra);
    }
  }
  c.out_types = infer(op, c.attrs, c.in_types, n);
  c.in.resize(static_cast<size_t>(n));
  c.want.resize(static_cast<size_t>(n));
  const Placement from = before(op, c.attrs), to = after(op, c.attrs);
  const int64_t outer = c.attrs.i_or("outer", 1);
  c.name = fmt::format("{}{} among {}:", op.name, to_string(c.attrs), n);
  for (const TensorType& t : c.in_types) {
    c.name += " " + to_string(t);
  }

  if (c.in_types[0].routed()) {
    const Routed r = random_routed(whole_type(c.in_types[0], from, n), rng);
    for (int64_t i = 0; i < n; ++i) {
      Bytes rows = rows_of(r, from, n, i, outer);
      rows.resize(static_cast<size_t>(c.in_types[0].bytes()), std::byte{0x5C});
      c.in[i] = {std::move(rows)};
      if (op.needs_sizes) {
        c.in[i].push_back(bytes_of(sizes_of(r, n)));
      }
      c.want[i] = {rows_of(r, to, n, i, outer)};
    }
    return c;
  }
  const size_t moved = op.list ? c.in_types.size() : 1;
  for (size_t k = 0; k < moved; ++k) {
    Dense d = random_dense(c.in_types[k], from, n, movement(op, c.attrs).monoid, rng);
    Bytes all;
    for (const Bytes& part : d.parts) {
      all.insert(all.end(), part.begin(), part.end());
    }
    for (int64_t i = 0; i < n; ++i) {
      c.in[i].push_back(d.parts[i]);
      if (op.makes_sizes) {
        c.want[i].push_back(all);
      }
      c.want[i].push_back(part_of(d, to, n, i, outer));
    }
  }
  return c;
}

std::vector<std::vector<Bytes>> run_in_turn(const Case& c, Rng& rng) {
  std::vector<std::vector<Bytes>> in = c.in, out(c.members());
  std::vector<std::vector<void*>> in_pointers(c.members()), out_pointers(c.members());
  std::vector<Operands> members;
  for (size_t m = 0; m < c.members(); ++m) {
    for (Bytes& b : in[m]) {
      in_pointers[m].push_back(b.data());
    }
    for (const TensorType& t : c.out_types) {
      out[m].push_back(Bytes(static_cast<size_t>(t.bytes()), kUntouched));
    }
    for (Bytes& b : out[m]) {
      out_pointers[m].push_back(b.data());
    }
    members.push_back({in_pointers[m], out_pointers[m]});
  }
  const CollectiveArgs all{&c.attrs, c.in_types, c.out_types, members};
  std::vector<size_t> order(c.members());
  std::iota(order.begin(), order.end(), 0);
  for (int phase = 0; phase < c.op->phases; ++phase) {
    rng.shuffle(order);
    for (size_t m : order) {
      c.op->run(all, m, phase);
    }
  }
  return out;
}

std::string difference(const Case& c, const std::vector<std::vector<Bytes>>& out) {
  for (size_t m = 0; m < c.members(); ++m) {
    for (size_t o = 0; o < c.out_types.size(); ++o) {
      const Bytes &got = out[m][o], &want = c.want[m][o];
      if (got == want) continue;
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] == (i < want.size() ? want[i] : kUntouched)) continue;
        return fmt::format("{}: output {} of member {} differs at byte {} of {} ({} wanted)",
                           c.name, o, m, i, got.size(), want.size());
      }
    }
  }
  return "";
}

std::string ops_table() {
  std::string text =
      "| op | on every axis of its group | on 8 ranks: rounds, bytes through a link / payload |\n"
      "|---|---|---|\n";
  for (const Op* op : all()) {
    const Move& m = op->move;
    std::string moves = op->role == Role::between ? "each task's part, to the other role"
                                                  : "as it lies, to the peer";
    if (op->role == Role::collective) {
      moves =
          moved_text(m.placed == Move::Placed::slot, m.placed == Move::Placed::sum, m.slot_dim) +
          " → " + moved_text(m.part == Move::Part::block, false, m.part_dim);
    }
    std::string cost = "its sender's";
    if (op->algorithms) {
      cost.clear();
      for (const Algorithm& a : op->algorithms(8, 1)) {
        cost +=
            fmt::format("{}{}: {:g}, {:g}", cost.empty() ? "" : "; ", a.name, a.rounds, a.bytes);
      }
    }
    text += fmt::format("| {} | {} | {} |\n", op->doc, moves, cost);
  }
  return text;
}

}  // namespace hocket::comm::test
