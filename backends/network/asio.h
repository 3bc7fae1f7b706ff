#pragma once

// Includes Boost.Asio for the library's sources. Asio is never part of the library's interface.
// Asio 1.74 needs <utility> but does not include it, so that header comes first.
//
// The extra fences of Asio are not needed: one thread runs each of our io_contexts, and others post
// to it under its mutex. gcc's thread sanitizer does not support these fences.
#define BOOST_ASIO_DISABLE_FENCED_BLOCK
#include <utility>
//
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

namespace tutti {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorStatus = boost::system::error_code;

}  // namespace tutti
