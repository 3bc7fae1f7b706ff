#include "tutti/adapters/exchange/policy.h"

namespace tutti {

ExchangePolicy synchronous() { return {}; }

ExchangePolicy local_sgd(int every, Momenta momenta) {
  return {.what = Exchanged::parameters, .every = every, .momenta = momenta};
}

ExchangePolicy post_local_sgd(int64_t synchronous_steps, int every) {
  return {.what = Exchanged::parameters, .every = every, .synchronous_steps = synchronous_steps};
}

ExchangePolicy slow_momentum_sgd(int every, double beta, double alpha) {
  return {.what = Exchanged::changes,
          .every = every,
          .outer = {.kind = OuterStep::Kind::slow_momentum, .rate = alpha, .momentum = beta}};
}

ExchangePolicy diloco(int every, double rate, double momentum) {
  return {.what = Exchanged::changes,
          .every = every,
          .outer = {.kind = OuterStep::Kind::sgd,
                    .rate = rate,
                    .momentum = momentum,
                    .nesterov = momentum != 0}};
}

ExchangePolicy streaming_diloco(int every, int fragments, int early, double kept) {
  auto policy = diloco(every);
  policy.fragments = fragments;
  policy.early = early;
  policy.kept = early > 0 ? kept : 0;
  return policy;
}

ExchangePolicy elastic_averaging(double pull, int every) {
  return {.what = Exchanged::parameters,
          .every = every,
          .outer = {.kind = OuterStep::Kind::elastic, .pull = pull}};
}

ExchangePolicy adasum_of_gradients() { return {.combination = Combination::adasum}; }

ExchangePolicy adasum_of_changes(int every) {
  return {.what = Exchanged::changes, .every = every, .combination = Combination::adasum};
}

}  // namespace tutti
