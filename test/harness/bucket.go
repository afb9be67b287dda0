package harness

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
)

// MakeBucket creates a bucket on an S3 server.
func MakeBucket(t testing.TB, endpoint, bucket string) {
	t.Helper()
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String(endpoint), Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(AccessKey, SecretKey, ""),
	})
	if _, err := client.CreateBucket(t.Context(), &s3.CreateBucketInput{Bucket: aws.String(bucket)}); err != nil {
		t.Fatal(err)
	}
}

// BucketURL is the --store URL of a bucket.
func BucketURL(endpoint, bucket string) string {
	return "s3://" + bucket + "/prefix?endpoint=" + endpoint + "&region=us-east-1&path_style=true"
}

// Outage is an S3 server in process that can be taken away.
type Outage struct {
	URL  string
	Down atomic.Bool // connections are cut without an answer
}

// StartOutage starts one with a bucket named bucket.
func StartOutage(t testing.TB) *Outage {
	t.Helper()
	o := &Outage{}
	fake := FakeS3()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if o.Down.Load() {
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = conn.Close()
			}
			return
		}
		fake.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	o.URL = server.URL
	MakeBucket(t, o.URL, "bucket")
	return o
}
