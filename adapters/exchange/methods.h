#pragma once

#include <span>
#include <string_view>

#include "tutti/adapters/exchange/policy.h"

namespace tutti {

/// These functions return the exchange policies of known methods. Each comment gives the traffic:
/// the bytes that a rank sends per step, as a multiple of one allreduce of the parameters. Such an
/// allreduce sends 2 (n - 1) / n of their size on each of n ranks. All methods weigh ranks equally.

/// Exchanges gradients in every step. Traffic: one allreduce per step.
ExchangePolicy synchronous();
/// Takes `every` local steps and then the mean of the parameters (Stich 2019). Traffic: one
/// allreduce in `every` steps.
ExchangePolicy local_sgd(int every, Momenta momenta = Momenta::own);
/// Exchanges gradients in each of the first `synchronous_steps` steps. After that it is local SGD
/// (Lin et al. 2020). Traffic: one allreduce per step at first, later one in `every` steps. It
/// works best if the learning rate drops for the first time when the local steps begin.
ExchangePolicy post_local_sgd(int64_t synchronous_steps, int every);
/// Adds a momentum over the rounds of local SGD, in units of the inner learning rate (Wang et al.
/// 2020). Traffic: one allreduce in `every` steps.
ExchangePolicy slow_momentum_sgd(int every, double beta = 0.5, double alpha = 1);
/// Takes the change of the parameters in a round of `every` steps as the gradient of Nesterov's SGD
/// (Douillard et al. 2023). Traffic: one allreduce in `every` steps. It was made for AdamW as the
/// inner optimizer and for hundreds of steps per round.
ExchangePolicy diloco(int every = 500, double rate = 0.7, double momentum = 0.9);
/// DiLoCo that sends the model in fragments while the ranks compute (Douillard et al. 2025).
/// Traffic: one allreduce of the whole model in `every` steps, one fragment at a time.
ExchangePolicy streaming_diloco(int every, int fragments, int early = 0, double kept = 0.5);
/// Draws each rank towards the mean of all ranks and lets it explore around that mean (Zhang et al.
/// 2015, in the synchronous form). Traffic: one allreduce in `every` steps.
ExchangePolicy elastic_averaging(double pull = 0.1, int every = 1);
/// Combines the gradients of each step, or the changes of `every` steps, by Adasum (adasum.h).
/// Traffic: one allreduce per step, or in `every` steps, plus 8 n (n + 1) / 2 bytes of inner
/// products per parameter.
ExchangePolicy adasum_of_gradients();
ExchangePolicy adasum_of_changes(int every = 1);  // see adasum_of_gradients()

}  // namespace tutti
