#include "tutti/core/agreement/agreement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <limits>
#include <vector>

#include "tutti/base/text.h"

namespace tutti {

namespace {

// Returns each variant with the ranks that sent it: "rank 0 sent f32[4], ranks 1-3 sent f32[5]".
std::string who_said_what(Voices voices,
                          const std::function<std::string(const Request&)>& describe) {
  std::vector<std::pair<std::string, std::vector<int>>> variants;
  for (const auto& [rank, request] : voices) {
    const auto text = describe(*request);
    auto found = std::find_if(variants.begin(), variants.end(),
                              [&](const auto& variant) { return variant.first == text; });
    if (found == variants.end()) found = variants.insert(variants.end(), {text, {}});
    found->second.push_back(rank);
  }
  std::string line;
  for (const auto& [text, ranks] : variants)
    line += fmt::format("{}{} sent {}", line.empty() ? "" : ", ", format_rank_set(ranks), text);
  return line;
}

// Returns the first rank whose description differs from that of the first request, or -1.
int odd_rank(Voices voices, const std::function<std::string(const Request&)>& describe) {
  const auto first = describe(*voices.front().second);
  for (const auto& [rank, request] : voices)
    if (describe(*request) != first) return rank;
  return -1;
}

struct Rule {
  const char* what;  // "all ranks must submit the same ..."
  bool (*applies)(CollectiveKind);
  std::string (*describe)(const Request&);
};

// Each of these functions returns whether a rule applies to a kind. Sends and receives have rules
// of their own.
bool always(CollectiveKind) { return true; }
bool reducing(CollectiveKind kind) { return reduces(kind); }
bool rooted(CollectiveKind kind) { return has_root(kind); }
bool typed(CollectiveKind kind) { return !is_described_by_root(kind); }
bool row_shape(CollectiveKind kind) { return joins_parts(kind) || exchanges_parts(kind); }
bool whole_shape(CollectiveKind kind) {
  return is_elementwise(kind) || (deals_parts(kind) && typed(kind));
}

// The rules are checked in this order, and the first disagreement is reported.
constexpr Rule kRules[] = {
    {"kind of operation", always,
     [](const Request& r) { return std::string(to_string(r.signature.kind)); }},
    {"group", always,
     [](const Request& r) {
       return r.signature.group.empty()
                  ? std::string("no group")
                  : fmt::format("group \"{}\" of {}", r.signature.group, r.signature.group_size);
     }},
    {"dtype", typed, [](const Request& r) { return r.signature.describe(); }},
    {"shape", whole_shape, [](const Request& r) { return r.signature.describe(); }},
    {"shape, except for the first extent", row_shape,
     [](const Request& r) { return r.signature.describe(); }},
    {"op", reducing, [](const Request& r) { return std::string(to_string(r.signature.op)); }},
    {"prescale and postscale", reducing,
     [](const Request& r) {
       return fmt::format("scales {} and {}", r.signature.prescale, r.signature.postscale);
     }},
    {"wire type", reducing,
     [](const Request& r) { return fmt::format("wire {}", to_string(r.signature.wire)); }},
    {"root", rooted, [](const Request& r) { return fmt::format("root {}", r.signature.root); }},
    {"device", typed,
     [](const Request& r) {
       return fmt::format("memory on {}", to_string(Device{r.signature.placement, 0}));
     }},
    {"priority", reducing,
     [](const Request& r) { return fmt::format("priority {}", r.signature.priority); }},
    {"place and layout of memory", whole_shape,
     [](const Request& r) {
       const auto& signature = r.signature;
       if (signature.place >= 0)
         return fmt::format(
             "memory at {} of GradientArena {} whose arrays (names, shapes, strides, which may be "
             "left out) have the digest {:016x}",
             signature.place & ((int64_t{1} << kArenaShift) - 1), signature.place >> kArenaShift,
             signature.layout);
       if (signature.layout != 0)
         return fmt::format("memory of its own with strides of the digest {:016x}",
                            signature.layout);
       return std::string("memory of its own");
     }},
    {"use of the result (gradients alone or an update)", reducing,
     [](const Request& r) {
       return std::string(r.signature.updates ? "a GradientArena that updates" : "gradients alone");
     }},
};

// Returns the text that must be equal on all ranks for a rule. It is usually the same text as in
// the error. For a dtype and a row shape it is only a part of the error's text.
std::string essence(const Rule& rule, const Request& request) {
  const std::string_view what(rule.what);
  if (what == "dtype") return std::string(to_string(request.signature.dtype));
  if (what == "shape, except for the first extent") {
    const auto& shape = request.signature.shape;
    return shape.rank() == 0 ? "scalar" : shape.with_rows(0).to_string();
  }
  return rule.describe(request);
}

int64_t row_extent(const Request& request) {
  const auto& shape = request.signature.shape;
  return shape.rank() == 0 ? 1 : shape[0];
}

// Returns the number of rows that `rank` receives. If the root deals out parts, `root` (the
// root's request) determines it. Otherwise the result is the sum over all ranks.
int64_t rows_for(CollectiveKind kind, Voices voices, int rank, int size, const Request& root) {
  const auto place = static_cast<size_t>(rank);
  if (deals_parts(kind))
    return root.rows.empty() ? even_share(row_extent(root), rank, size) : root.rows[place];
  int64_t total = 0;
  for (const auto& [from, request] : voices)
    if (__builtin_add_overflow(
            total, exchanges_parts(kind) ? request->rows[place] : row_extent(*request), &total))
      return std::numeric_limits<int64_t>::max();
  return total;
}

// Checks the outputs that callers gave. It runs after all other checks have passed.
std::optional<Error> check_outputs(const std::string& name, Voices voices, int size) {
  const auto& first = *voices.front().second;
  const auto kind = first.signature.kind;
  const bool only_root = is_described_by_root(kind);
  const Request* source = &first;  // the request whose rows are dealt out
  for (const auto& [rank, request] : voices)
    if (only_root && rank == request->signature.root) source = request;
  const auto row_type = [](const Request& request) {
    return std::pair(request.signature.dtype, request.signature.shape.with_rows(0));
  };
  for (const auto& [rank, request] : voices) {
    if (request->output_rows < 0) continue;
    if (only_root && row_type(*request) != row_type(*source))
      return Error(
                 ErrorCode::mismatch,
                 fmt::format(
                     "\"{}\": rank {} gave an output {}, but the root scatters {}; both must have "
                     "the same dtype and shape, except for the first extent. Nothing was changed.",
                     name, rank, request->signature.describe(), source->signature.describe()))
          .with_rank(rank);
    const int64_t rows = rows_for(kind, voices, rank, size, *source);
    if (request->output_rows != rows)
      return Error(ErrorCode::mismatch,
                   fmt::format("\"{}\": rank {} gave an output of {} rows, but its part is {}; let "
                               "the library make the output or give {} rows. Nothing was changed.",
                               name, rank, request->output_rows, rows, rows))
          .with_rank(rank);
  }
  return {};
}

std::optional<Error> check_rows(const std::string& name, Voices voices, int size) {
  const auto kind = voices.front().second->signature.kind;
  // The user gave the row counts, so their sum may overflow. It is then replaced by the maximum,
  // which matches no tensor.
  const auto sum = [](const std::vector<int64_t>& rows) {
    int64_t total = 0;
    for (const int64_t count : rows)
      if (__builtin_add_overflow(total, count, &total)) return std::numeric_limits<int64_t>::max();
    return total;
  };
  if (joins_parts(kind) && !traits(kind).to_root) {
    int64_t total = 0;
    for (const auto& [rank, request] : voices)
      total += request->signature.shape.rank() == 0 ? 1 : request->signature.shape[0];
    for (const auto& [rank, request] : voices)
      if (request->output_rows >= 0 && request->output_rows != total)
        return Error(
                   ErrorCode::mismatch,
                   fmt::format("\"{}\": rank {} gave an output of {} rows, but all ranks together "
                               "sent {}; let the library make the output or give {} rows. "
                               "Nothing was changed.",
                               name, rank, request->output_rows, total, total))
            .with_rank(rank);
  }
  if (deals_parts(kind)) {
    const bool only_root = is_described_by_root(kind);
    const Request* first = nullptr;
    for (const auto& [rank, request] : voices) {
      if (only_root && rank != request->signature.root) continue;
      if (first == nullptr) first = request;
      if (request->rows != first->rows) {
        const auto describe = [](const Request& r) {
          return fmt::format("rows [{}]", fmt::join(r.rows, ","));
        };
        return Error(ErrorCode::mismatch,
                     fmt::format("\"{}\": {}; all ranks must give the same number of rows for each "
                                 "rank. Nothing was changed.",
                                 name, who_said_what(voices, describe)))
            .with_rank(rank);
      }
    }
    if (first == nullptr) return {};  // the root called join(); the negotiator reports that
    const int64_t rows = first->signature.shape.rank() == 0 ? 1 : first->signature.shape[0];
    if (!first->rows.empty() &&
        (static_cast<int>(first->rows.size()) != size || sum(first->rows) != rows))
      return Error(
          ErrorCode::mismatch,
          fmt::format("\"{}\": rows [{}] do not divide {} rows among {} ranks. Nothing was "
                      "changed.",
                      name, fmt::join(first->rows, ","), rows, size));
  }
  return {};
}

std::optional<Error> check_pair(const std::string& name, Voices voices) {
  const auto& a = voices[0].second->signature;
  const auto& b = voices[1].second->signature;
  if (a.kind == b.kind)
    return Error(ErrorCode::mismatch,
                 fmt::format("\"{}\": ranks {} and {} both called {}; one must send and the other "
                             "receive. Nothing was changed.",
                             name, voices[0].first, voices[1].first, to_string(a.kind)));
  if (a.placement != b.placement)
    return Error(ErrorCode::mismatch,
                 fmt::format("\"{}\": rank {} gave memory on {}, rank {} memory on {}; both must "
                             "use the same kind of memory. Nothing was changed.",
                             name, voices[0].first, to_string(Device{a.placement, 0}),
                             voices[1].first, to_string(Device{b.placement, 0})));
  if (a.dtype != b.dtype || a.shape.count() != b.shape.count()) {
    const auto verb = [](const Signature& s) {
      return s.kind == CollectiveKind::send ? "sends" : "expects";
    };
    return Error(ErrorCode::mismatch,
                 fmt::format("\"{}\": rank {} {} {}, rank {} {} {}; both must name the same dtype "
                             "and number of elements. Nothing was changed.",
                             name, voices[0].first, verb(a), a.describe(), voices[1].first, verb(b),
                             b.describe()))
        .with_rank(voices[1].first);
  }
  return {};
}

}  // namespace

std::optional<Error> find_disagreement(const std::string& name, Voices voices, int size) {
  const auto kind = voices.front().second->signature.kind;
  if (is_pair(kind)) {
    auto error = check_pair(name, voices);
    if (error) error->with_tensor(name);
    return error;
  }
  for (const auto& rule : kRules) {
    if (!rule.applies(kind)) continue;
    const auto essence_of = [&](const Request& request) { return essence(rule, request); };
    const int rank = odd_rank(voices, essence_of);
    if (rank < 0) continue;
    return Error(ErrorCode::mismatch,
                 fmt::format("\"{}\": {}; all ranks must submit the same {}. Nothing was changed.",
                             name, who_said_what(voices, rule.describe), rule.what))
        .with_rank(rank)
        .with_tensor(name);
  }
  auto error = check_rows(name, voices, size);
  if (!error) error = check_outputs(name, voices, size);
  if (error) error->with_tensor(name);
  return error;
}

}  // namespace tutti
