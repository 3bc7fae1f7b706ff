#pragma once

namespace tutti {

/// Opens /dev/null as each of the three standard streams that this process was started without.
/// What is opened next would get its number otherwise: a log line would go into a socket, and a
/// program that is started would read a secret as its input. Throws Error(io).
void complete_standard_streams();

}  // namespace tutti
