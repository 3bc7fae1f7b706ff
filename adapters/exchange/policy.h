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
/// on all ranks, which distributed() checks. The default is synchronous SGD. methods.h has a
/// function for each named method.
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

}  // namespace tutti
