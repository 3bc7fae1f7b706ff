#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

/// Selects what the ranks exchange: the gradient of each step, the parameters themselves, or the
/// changes of the parameters since the last exchange.
enum class Exchanged { gradients, parameters, changes };

/// Selects what happens to the inner optimizer's state (momenta) at an exchange: each rank keeps
/// its own, all ranks get the mean, or all begin again from zero.
enum class Momenta { own, averaged, zeroed };

/// Selects how the ranks' values are combined: by their mean, in which each rank weighs the same,
/// or by Adasum (adasum.h), which adds orthogonal parts and averages parallel ones.
enum class Combination { mean, adasum };

/// Selects what is done with the combined parameters or changes.
struct OuterStep {
  enum class Kind {
    none,           // the combined values become the new parameters
    sgd,            // DiLoCo: the change is the gradient of SGD, on parameters that all ranks share
    slow_momentum,  // SlowMo: the change divided by the inner learning rate goes into a momentum
    elastic,        // EASGD: each rank is drawn towards the mean and otherwise keeps its own
  };
  Kind kind = Kind::none;
  double rate = 1;        // sgd's learning rate; slow_momentum's alpha
  double momentum = 0;    // momentum of sgd; slow_momentum's beta
  bool nesterov = false;  // for sgd: Nesterov's form of the momentum
  double pull = 0.1;      // elastic's fraction of the way to the mean
};

/// Says when ranks exchange, what they exchange, and what they do with the result. It must be equal
/// on all ranks, which distributed() checks. The default is synchronous SGD. The functions at the
/// end of this header return the policies of known methods.
struct ExchangePolicy {
  Exchanged what = Exchanged::gradients;
  /// Number of steps of the inner optimizer from one exchange of a parameter to the next.
  int every = 1;
  /// Gradients are exchanged in this many first steps. After them the ranks exchange what `what`
  /// selects (post-local SGD).
  int64_t synchronous_steps = 0;
  Combination combination = Combination::mean;
  OuterStep outer = {};
  Momenta momenta = Momenta::own;
  /// Number of parts, of about equal size, into which the model is divided. They are exchanged one
  /// after another, one every `every / fragments` steps.
  int fragments = 1;
  /// Number of steps from the start of a fragment's exchange to the use of its result.
  int early = 0;
  /// The fraction of a rank's own value that is kept when the result arrives. The value has changed
  /// during the exchange.
  double kept = 0;

  bool exchanges_parameters() const { return what != Exchanged::gradients; }
  /// Returns whether parameters that all ranks share are kept beside the ranks' own.
  bool keeps_shared_parameters() const { return what == Exchanged::changes; }
};

/// Throws Error(invalid_argument) if two settings exclude each other or one is out of its range.
/// The text is one line that names the settings.
void check_policy(const ExchangePolicy& policy);

/// Returns the settings one by one as "name=value". Ranks compare them.
std::vector<std::string> policy_settings(const ExchangePolicy& policy);

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
