#include "tutti/adapters/exchange/policy.h"

#include <fmt/format.h>

#include "tutti/base/error.h"

namespace tutti {

namespace {

// The names of the enumerators, in their order.
constexpr const char* kExchanged[] = {"gradients", "parameters", "changes"};
constexpr const char* kMomenta[] = {"own", "averaged", "zeroed"};
constexpr const char* kOuterSteps[] = {"none", "sgd", "slow_momentum", "elastic"};

const char* name_of(Exchanged what) { return kExchanged[static_cast<size_t>(what)]; }
const char* name_of(Momenta momenta) { return kMomenta[static_cast<size_t>(momenta)]; }
const char* name_of(OuterStep::Kind kind) { return kOuterSteps[static_cast<size_t>(kind)]; }
const char* name_of(Combination combination) {
  return combination == Combination::mean ? "mean" : "adasum";
}

void want(bool holds, const std::string& message) {
  if (!holds) throw Error(ErrorCode::invalid_argument, "exchange policy: " + message);
}

void check_ranges(const ExchangePolicy& policy) {
  const auto& outer = policy.outer;
  want(policy.every >= 1, fmt::format("every is {}, expected at least 1 step", policy.every));
  want(policy.synchronous_steps >= 0,
       fmt::format("synchronous_steps is {}, expected at least 0", policy.synchronous_steps));
  want(policy.fragments >= 1,
       fmt::format("fragments is {}, expected at least 1", policy.fragments));
  want(policy.kept >= 0 && policy.kept < 1,
       fmt::format("kept is {}, expected at least 0 and less than 1", policy.kept));
  want(outer.rate > 0, fmt::format("outer.rate is {}, expected more than 0", outer.rate));
  want(outer.momentum >= 0 && outer.momentum < 1,
       fmt::format("outer.momentum is {}, expected at least 0 and less than 1", outer.momentum));
  want(outer.pull > 0 && outer.pull <= 1,
       fmt::format("outer.pull is {}, expected more than 0 and at most 1", outer.pull));
}

// Refuses settings that have no meaning if gradients are exchanged. That happens in every step.
void check_gradients(const ExchangePolicy& policy) {
  const std::string_view unless = "; exchange parameters or changes, or leave it out";
  want(policy.every == 1, fmt::format("what=gradients excludes every={}{}", policy.every, unless));
  want(policy.synchronous_steps == 0, fmt::format("what=gradients excludes synchronous_steps={}{}",
                                                  policy.synchronous_steps, unless));
  want(policy.outer.kind == OuterStep::Kind::none,
       fmt::format("what=gradients excludes outer={}{}", name_of(policy.outer.kind), unless));
  want(policy.momenta == Momenta::own,
       fmt::format("what=gradients excludes momenta={}{}", name_of(policy.momenta), unless));
  want(policy.fragments == 1,
       fmt::format("what=gradients excludes fragments={}{}", policy.fragments, unless));
}

void check_outer(const ExchangePolicy& policy) {
  const auto kind = policy.outer.kind;
  const bool of_changes = kind == OuterStep::Kind::sgd || kind == OuterStep::Kind::slow_momentum;
  want(!of_changes || policy.what == Exchanged::changes,
       fmt::format("outer={} excludes what={}; it steps on changes", name_of(kind),
                   name_of(policy.what)));
  want(kind != OuterStep::Kind::elastic || policy.what == Exchanged::parameters,
       fmt::format("outer=elastic excludes what={}; it draws ranks to the mean of their parameters",
                   name_of(policy.what)));
  want(!policy.outer.nesterov || kind == OuterStep::Kind::sgd,
       fmt::format("outer.nesterov excludes outer={}; only sgd has it", name_of(kind)));
  want(policy.combination == Combination::mean || policy.what != Exchanged::parameters,
       "combination=adasum excludes what=parameters; it combines gradients or changes");
  want(policy.combination == Combination::mean || policy.fragments == 1,
       fmt::format("combination=adasum excludes fragments={}; it combines all at once",
                   policy.fragments));
}

void check_fragments(const ExchangePolicy& policy) {
  want(policy.every % policy.fragments == 0,
       fmt::format("every={} is not a multiple of fragments={}", policy.every, policy.fragments));
  const int apart = policy.every / policy.fragments;
  want(policy.early >= 0 && policy.early < apart,
       fmt::format("early={} excludes every={} with fragments={}; expected at least 0 and less "
                   "than the {} steps from one fragment to the next",
                   policy.early, policy.every, policy.fragments, apart));
  want(policy.fragments == 1 || policy.what == Exchanged::changes,
       fmt::format("fragments={} excludes what={}; use what=changes", policy.fragments,
                   name_of(policy.what)));
  want(policy.fragments == 1 || policy.momenta == Momenta::own,
       fmt::format("fragments={} excludes momenta={}; use momenta=own", policy.fragments,
                   name_of(policy.momenta)));
  want(policy.early == 0 ||
           (policy.what == Exchanged::changes && policy.combination == Combination::mean),
       fmt::format("early={} excludes what={} with combination={}; use the mean of changes",
                   policy.early, name_of(policy.what), name_of(policy.combination)));
  want(policy.early == 0 || policy.momenta != Momenta::averaged,
       fmt::format(
           "early={} excludes momenta=averaged; the ranks change their momenta during the exchange",
           policy.early));
  want(policy.kept == 0 || policy.early > 0,
       fmt::format("kept={} excludes early=0, with which nothing changes during the exchange",
                   policy.kept));
}

}  // namespace

void check_policy(const ExchangePolicy& policy) {
  check_ranges(policy);
  if (policy.what == Exchanged::gradients) check_gradients(policy);
  check_outer(policy);
  check_fragments(policy);
}

std::vector<std::string> policy_settings(const ExchangePolicy& policy) {
  const auto& outer = policy.outer;
  return {fmt::format("what={}", name_of(policy.what)),
          fmt::format("every={}", policy.every),
          fmt::format("synchronous_steps={}", policy.synchronous_steps),
          fmt::format("combination={}", name_of(policy.combination)),
          fmt::format("outer={}", name_of(outer.kind)),
          fmt::format("outer.rate={}", outer.rate),
          fmt::format("outer.momentum={}", outer.momentum),
          fmt::format("outer.nesterov={}", outer.nesterov),
          fmt::format("outer.pull={}", outer.pull),
          fmt::format("momenta={}", name_of(policy.momenta)),
          fmt::format("fragments={}", policy.fragments),
          fmt::format("early={}", policy.early),
          fmt::format("kept={}", policy.kept)};
}

}  // namespace tutti
