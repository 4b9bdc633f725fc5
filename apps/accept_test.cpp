// The program's accept(), which this test is linked with, as libraries meet it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

extern "C" void nccl_stand_in_accept(int listener, int* socket);  // in libnccl_stand_in.so

namespace {

class Accept : public testing::Test {
 protected:
  void SetUp() override {
    at_.sin_family = AF_INET;
    at_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at_);
    ASSERT_TRUE(::bind(listener_, any(), size) == 0 && ::listen(listener_, 8) == 0 &&
                ::getsockname(listener_, any(), &size) == 0);
    ASSERT_EQ(::fcntl(listener_, F_SETFL, O_NONBLOCK), 0);  // so that nothing to accept is EAGAIN
  }
  void TearDown() override { ::close(listener_); }

  int connected() {
    const int out = ::socket(AF_INET, SOCK_STREAM, 0);
    return ::connect(out, any(), sizeof(at_)) == 0 ? out : -1;
  }
  // A connection that has sent a byte and is closed before anybody takes it.
  void say_and_close() {
    const int socket = connected();
    ASSERT_EQ(::send(socket, "x", 1, 0), 1);
    ::close(socket);
  }
  sockaddr* any() { return reinterpret_cast<sockaddr*>(&at_); }

  sockaddr_in at_{};
  const int listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
};

TEST_F(Accept, F169_AProcessOfTheSameUserPasses) {
  const int ours = connected();
  ASSERT_GE(ours, 0);
  const int socket = ::accept(listener_, nullptr, nullptr);
  EXPECT_GE(socket, 0);
  for (const int fd : {ours, socket}) ::close(fd);
}

TEST_F(Accept, F169_WhatIsClosedAlreadyDoesNotPass) {
  say_and_close();
  EXPECT_EQ(::accept(listener_, nullptr, nullptr), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST_F(Accept, F174_ToNcclWhatIsClosedAlreadyPasses) {
  say_and_close();
  int socket = -1;
  nccl_stand_in_accept(listener_, &socket);
  ASSERT_GE(socket, 0);
  char said = 0;
  EXPECT_EQ(::recv(socket, &said, 1, 0), 1);
  EXPECT_EQ(said, 'x');
  ::close(socket);
}

}  // namespace
