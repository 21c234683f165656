// SPDX-License-Identifier: Apache-2.0
// Implements: parse (ast.h), the statements of jinja2's grammar.
#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/ast.h"
#include "data/chat/expression_parser.h"

namespace hocket::data::jinja {
namespace {

using Kind = Token::Kind;
using Op = Expr::Op;

constexpr size_t kMaxSource = size_t{4} << 20;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Program run() {
    program_.body = block({});
    return std::move(program_);
  }

 private:
  StmtPtr statement(Stmt::Kind kind, int line) const {
    auto out = std::make_unique<Stmt>();
    out->kind = kind;
    out->line = line;
    return out;
  }

  // Statements up to a tag of one of `ends`, whose name is left as the current token; up to the end
  // of the template without `ends`.
  Block block(const std::vector<std::string_view>& ends) {
    const Nested nested(this);
    Block out;
    for (;;) {
      const int line = now().line;
      if (now().kind == Kind::data) {
        out.push_back(statement(Stmt::Kind::text, line));
        out.back()->text = take().text;
      } else if (now().kind == Kind::variable_begin) {
        take();
        out.push_back(statement(Stmt::Kind::output, line));
        out.back()->exprs.push_back(tuple());
        if (now().kind != Kind::variable_end) refuse("got {}; expected '}}}}'", shown(now()));
        take();
      } else if (now().kind == Kind::block_begin) {
        take();
        if (now().kind != Kind::name) refuse("got {}; expected the name of a tag", shown(now()));
        if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) return out;
        if (StmtPtr made = tag(ends)) {
          out.push_back(std::move(made));
        }
      } else {
        if (!ends.empty()) refuse("the template ends; expected '{{% {} %}}'", ends.front());
        return out;
      }
    }
  }
  /// Parses a block, and its end tag, which has nothing else in it.
  Block body(std::string_view end) {
    expect_block_end();
    Block out = block({end});
    take();
    expect_block_end();
    return out;
  }

  StmtPtr tag(const std::vector<std::string_view>& ends) {
    const Token name = take();
    const std::string& text = name.text;
    if (text == "if") return conditional(name.line);
    if (text == "for") return loop(name.line);
    if (text == "set") return set(name.line);
    if (text == "macro") return macro(name.line);
    if (text == "call") return call_block(name.line);
    if (text == "filter") return filter_block(name.line);
    if (text == "with") return with(name.line);
    if (text == "generation") return generation(name.line);
    if (text == "break" || text == "continue") return jump(name);
    if (text == "print") {
      StmtPtr out = statement(Stmt::Kind::output, name.line);
      do {
        out->exprs.push_back(expression());
      } while (skip_op(","));
      expect_block_end();
      return out;
    }
    --at_;
    if (text.starts_with("end") || text == "else" || text == "elif") {
      refuse("unexpected tag '{}'; expected {}", text,
             ends.empty() ? "no open block" : fmt::format("'{}'", ends.front()));
    }
    refuse(
        "the tag '{}' is not supported; expected if, for, set, macro, call, filter, with, "
        "generation, break, continue or raw",
        text);
  }

  StmtPtr conditional(int line) {
    StmtPtr out = statement(Stmt::Kind::conditional, line);
    for (;;) {
      Branch branch;
      branch.test = tuple(false);
      expect_block_end();
      branch.body = block({"endif", "elif", "else"});
      out->branches.push_back(std::move(branch));
      const std::string end = take().text;
      if (end == "elif") continue;
      if (end == "else") {
        out->branches.push_back({nullptr, body("endif")});
      } else {
        expect_block_end();
      }
      return out;
    }
  }

  StmtPtr loop(int line) {
    StmtPtr out = statement(Stmt::Kind::loop, line);
    out->targets.push_back(target(false, "in"));
    if (!skip_name("in")) refuse("got {}; expected 'in'", shown(now()));
    out->exprs.push_back(tuple(false, "recursive"));
    if (skip_name("if")) {
      out->filter = expression();
    }
    out->recursive = skip_name("recursive");
    expect_block_end();
    frames_.push_back({.loop = true});
    out->body = block({"endfor", "else"});
    out->uses_loop = frames_.back().uses_loop;
    frames_.pop_back();
    if (take().text == "else") {
      out->otherwise = body("endfor");
    } else {
      expect_block_end();
    }
    return out;
  }

  StmtPtr set(int line) {
    StmtPtr out = statement(Stmt::Kind::set, line);
    out->targets.push_back(target(true, ""));
    if (skip_op("=")) {
      out->exprs.push_back(tuple());
      expect_block_end();
      return out;
    }
    out->kind = Stmt::Kind::set_block;
    if (is_op("|")) {
      out->filter = filters(nullptr);
    }
    out->body = body("endset");
    return out;
  }

  void signature(Signature* out) {
    expect_op("(");
    while (!is_op(kClosingBracket)) {
      if (!out->names.empty()) {
        expect_op(",");
      }
      const std::string name = expect_name();
      if (std::find(out->names.begin(), out->names.end(), name) != out->names.end()) {
        refuse("the parameter {} is there twice", quote(name));
      }
      if (name == "caller" || name == "varargs" || name == "kwargs") {
        refuse("the parameter '{}' is not supported; expected another name", name);
      }
      out->names.push_back(name);
      out->ids.push_back(id(name));
      if (skip_op("=")) {
        out->defaults.push_back(expression());
      } else if (!out->defaults.empty()) {
        refuse("a parameter without default follows one with a default");
      }
    }
    expect_op(")");
  }
  // Body of a macro or call block; break and continue do not reach out of it.
  void macro_body(Stmt* out, std::string_view end) {
    frames_.push_back({.macro = true});
    out->body = body(end);
    const Frame& frame = frames_.back();
    out->signature.uses_caller = frame.uses_caller;
    out->signature.uses_varargs = frame.uses_varargs;
    out->signature.uses_kwargs = frame.uses_kwargs;
    frames_.pop_back();
  }
  StmtPtr macro(int line) {
    StmtPtr out = statement(Stmt::Kind::macro, line);
    out->text = expect_name();
    out->name = id(out->text);
    signature(&out->signature);
    macro_body(out.get(), "endmacro");
    return out;
  }
  StmtPtr call_block(int line) {
    StmtPtr out = statement(Stmt::Kind::call_block, line);
    if (is_op("(")) {
      signature(&out->signature);
    }
    out->exprs.push_back(expression());
    if (out->exprs[0]->op != Op::call) refuse("a call block calls nothing; expected a call");
    macro_body(out.get(), "endcall");
    return out;
  }
  StmtPtr filter_block(int line) {
    StmtPtr out = statement(Stmt::Kind::filter_block, line);
    out->filter = filters(nullptr, true);
    out->body = body("endfilter");
    return out;
  }
  StmtPtr with(int line) {
    StmtPtr out = statement(Stmt::Kind::with, line);
    while (now().kind != Kind::block_end) {
      if (!out->targets.empty()) {
        expect_op(",");
      }
      out->targets.push_back(target(false, ""));
      expect_op("=");
      out->exprs.push_back(expression());
    }
    out->body = body("endwith");
    return out;
  }
  StmtPtr generation(int line) {
    StmtPtr out = statement(Stmt::Kind::generation, line);
    program_.has_generation = true;
    macro_body(out.get(), "endgeneration");
    return out;
  }
  StmtPtr jump(const Token& name) {
    if (frames_.empty() || !frames_.back().loop) {
      refuse("'{}' is outside of a loop", name.text);
    }
    expect_block_end();
    return statement(name.text == "break" ? Stmt::Kind::break_loop : Stmt::Kind::continue_loop,
                     name.line);
  }

  Target one_target(bool attributes, std::string_view end) {
    const Nested nested(this);
    if (skip_op("(")) {
      Target out = target(attributes, end);
      expect_op(")");
      return out;
    }
    const std::string name = expect_name();
    static constexpr std::string_view kConstants[] = {"true", "false", "none",
                                                      "True", "False", "None"};
    if (name == "loop" ||
        std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants)) {
      refuse("can't assign to '{}'", name);
    }
    Target out;
    out.name = id(name);
    if (attributes && skip_op(".")) {
      mention(name);
      out.attribute = expect_name();
    }
    return out;
  }
  Target target(bool attributes, std::string_view end) {
    Target first = one_target(attributes, end);
    if (!is_op(",")) return first;
    Target out;
    out.several = true;
    out.parts.push_back(std::move(first));
    while (skip_op(",")) {
      if (is_op("=") || is_op(kClosingBracket) || (!end.empty() && is_name(end))) break;
      out.parts.push_back(one_target(attributes, end));
    }
    return out;
  }
};

}  // namespace

Program parse(std::string_view source, const std::string& where) {
  if (source.size() > kMaxSource) {
    fail(where, "the template is {} bytes long; expected at most {}", source.size(), kMaxSource);
  }
  return Parser(source, where).run();
}

}  // namespace hocket::data::jinja
