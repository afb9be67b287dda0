//go:build integration

package conformance_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/blobtest"
)

// The binary of versitygw, a real S3 server, is named by the environment variable VERSITYGW.
func TestS3RealServer(t *testing.T) {
	binary := os.Getenv("VERSITYGW")
	if binary == "" {
		t.Fatal("VERSITYGW is not set: give it the path of a versitygw binary")
	}
	setCredentials(t)
	endpoint := startServer(t, binary)
	var buckets atomic.Int64
	blobtest.Run(t, func(t *testing.T) blob.Store {
		return openBucket(t, endpoint, fmt.Sprintf("bucket-%d", buckets.Add(1)), "some/prefix")
	})
}

func startServer(t *testing.T, binary string) (endpoint string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	server := exec.Command(binary, "--port", address, "posix", t.TempDir())
	server.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+accessKey, "ROOT_SECRET_KEY="+secretKey)
	log, err := os.CreateTemp(t.TempDir(), "log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	server.Stdout, server.Stderr = log, log
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
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
			response.Body.Close()
			return "http://" + address
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the server ended: %v", err)
		case <-timeout:
			t.Fatal("the server does not answer within 20 s")
		case <-poll.C:
		}
	}
}
