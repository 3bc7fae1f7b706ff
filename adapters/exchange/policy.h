#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti {

/// What the ranks exchange: the gradient of each step, the parameters themselves, or what changed
/// in them since the last exchange.
enum class Exchanged { gradients, parameters, changes };

/// What becomes of the inner optimizer's state (momenta) at an exchange: each rank keeps its own,
/// all get the mean, or all begin anew from zero.
enum class Momenta { own, averaged, zeroed };

/// How what is exchanged becomes one: its mean over the ranks (each rank weighs the same), or
/// Adasum (adasum.h), which adds what is orthogonal and averages what is parallel.
enum class Combination { mean, adasum };

/// What is done with the combined parameters or changes.
struct OuterStep {
  enum class Kind {
    none,           // they are the new parameters
    sgd,            // DiLoCo: the change is the gradient of SGD, on parameters that all ranks share
    slow_momentum,  // SlowMo: the change divided by the inner learning rate goes into a momentum
    elastic,        // EASGD: each rank is drawn towards the mean and stays where it is otherwise
  };
  Kind kind = Kind::none;
  double rate = 1;        // sgd's learning rate; slow_momentum's alpha
  double momentum = 0;    // sgd's; slow_momentum's beta
  bool nesterov = false;  // sgd's
  double pull = 0.1;      // elastic: the share of the way to the mean
};

/// When ranks exchange what, and what they do with it. A value that is equal on all ranks:
/// distributed() compares. The default is synchronous SGD; methods.h makes the named ones.
struct ExchangePolicy {
  Exchanged what = Exchanged::gradients;
  /// Steps of the inner optimizer from one exchange of a parameter to the next.
  int every = 1;
  /// Gradients are exchanged in so many first steps, and only then what `what` says (post-local).
  int64_t synchronous_steps = 0;
  Combination combination = Combination::mean;
  OuterStep outer = {};
  Momenta momenta = Momenta::own;
  /// Parts of the model, of about equal size, that are exchanged one after another, one every
  /// `every / fragments` steps.
  int fragments = 1;
  /// A fragment sets out so many steps before its result is used, and travels meanwhile.
  int early = 0;
  /// The share that a rank's own value, which went on meanwhile, keeps when the result comes.
  double kept = 0;

  bool exchanges_parameters() const { return what != Exchanged::gradients; }
  /// Whether parameters that all ranks share are kept beside the ranks' own.
  bool keeps_shared_parameters() const { return what == Exchanged::changes; }
};

/// Throws Error(invalid_argument), one line that names both settings, where two exclude each other
/// or one is out of its range.
void check_policy(const ExchangePolicy& policy);

/// Settings as "name=value" one by one: what ranks compare.
std::vector<std::string> policy_settings(const ExchangePolicy& policy);

}  // namespace tutti
