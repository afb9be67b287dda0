//go:build integration

package conformance_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/blobtest"
	"github.com/reprieve-dev/reprieve/test/harness"
)

func TestS3RealServer(t *testing.T) {
	setCredentials(t)
	endpoint := harness.RealS3(t)
	var buckets atomic.Int64
	blobtest.Run(t, func(t *testing.T) blob.Store {
		return openBucket(t, endpoint, fmt.Sprintf("bucket-%d", buckets.Add(1)), "some/prefix")
	})
}
