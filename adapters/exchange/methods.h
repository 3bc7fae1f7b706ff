#pragma once

#include <span>
#include <string_view>

#include "tutti/adapters/exchange/policy.h"

namespace tutti {

/// The methods by name. Bytes of a step: A is what an allreduce of the parameters sends, on each of
/// n ranks 2 (n - 1) / n of their size. All weigh ranks equally.

/// Gradients in every step: A.
ExchangePolicy synchronous();
/// `every` steps by itself, then the mean of the parameters (Stich 2019): A / every.
ExchangePolicy local_sgd(int every, Momenta momenta = Momenta::own);
/// Synchronous for so many steps, best until the learning rate first drops, then local
/// (Lin et al. 2020): A, then A / every.
ExchangePolicy post_local_sgd(int64_t synchronous_steps, int every);
/// A momentum over the rounds of local SGD, in units of the inner learning rate
/// (Wang et al. 2020): A / every.
ExchangePolicy slow_momentum_sgd(int every, double beta = 0.5, double alpha = 1);
/// The change of a round is the gradient of Nesterov's SGD (Douillard et al. 2023): A / every. Made
/// for AdamW inside and hundreds of steps.
ExchangePolicy diloco(int every = 500, double rate = 0.7, double momentum = 0.9);
/// DiLoCo by fragments that travel while the ranks compute (Douillard et al. 2025): A / every, a
/// fragment at a time.
ExchangePolicy streaming_diloco(int every, int fragments, int early = 0, double kept = 0.5);
/// Each rank is drawn towards the mean of all and explores around it (Zhang et al. 2015, in the
/// synchronous form): A / every.
ExchangePolicy elastic_averaging(double pull = 0.1, int every = 1);
/// Adasum of the gradients of each step, or of the changes of `every` steps: A, or A / every, and
/// 8 n (n + 1) / 2 bytes of inner products a parameter (adasum.h).
ExchangePolicy adasum_of_gradients();
ExchangePolicy adasum_of_changes(int every = 1);  // see adasum_of_gradients()

}  // namespace tutti
