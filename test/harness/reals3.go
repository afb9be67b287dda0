package harness

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// Credentials of the S3 servers that tests run.
const (
	AccessKey = "test"
	SecretKey = "test-secret"
)

// RealS3 starts versitygw, a real S3 server, whose binary the environment variable VERSITYGW names,
// and returns its URL.
func RealS3(t testing.TB) (endpoint string) {
	t.Helper()
	binary := os.Getenv("VERSITYGW")
	if binary == "" {
		t.Fatal("VERSITYGW is not set: give it the path of a versitygw binary")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	server := exec.Command(binary, "--port", address, "posix", t.TempDir())
	server.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+AccessKey, "ROOT_SECRET_KEY="+SecretKey)
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	server.Stdout, server.Stderr = log, log
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = server.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = server.Process.Kill()
		<-ended
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("the server's log:\n%s", text[max(0, len(text)-4000):])
		}
	})
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	timeout := time.After(20 * time.Second)
	for {
		if response, err := http.Get("http://" + address); err == nil {
			_ = response.Body.Close()
			return "http://" + address
		}
		select {
		case <-ended:
			t.Fatal("the server ended")
		case <-timeout:
			t.Fatal("the server does not answer within 20 s")
		case <-poll.C:
		}
	}
}
