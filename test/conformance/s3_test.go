package conformance_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/blobtest"
	"github.com/reprieve-dev/reprieve/infra/blob/s3"
	"github.com/reprieve-dev/reprieve/test/harness"
)

func TestS3InProcess(t *testing.T) {
	setCredentials(t)
	blobtest.Run(t, func(t *testing.T) blob.Store {
		server := httptest.NewServer(harness.FakeS3())
		t.Cleanup(server.Close)
		return openBucket(t, server.URL, "bucket", "some/prefix")
	})
}

func setCredentials(t *testing.T) {
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": harness.AccessKey, "AWS_SECRET_ACCESS_KEY": harness.SecretKey,
		"AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null", "AWS_PROFILE": "", "AWS_SESSION_TOKEN": "",
	} {
		t.Setenv(name, value)
	}
}

// openBucket creates a bucket and opens it as a store. At the end of the test no upload may be left open.
func openBucket(t *testing.T, endpoint, bucket, prefix string) blob.Store {
	t.Helper()
	cfg, err := config.LoadDefaultConfig(t.Context(), config.WithRegion("us-east-1"))
	if err != nil {
		t.Fatal(err)
	}
	client := awss3.NewFromConfig(cfg, func(o *awss3.Options) { o.BaseEndpoint, o.UsePathStyle = &endpoint, true })
	if _, err := client.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	location, err := url.Parse(fmt.Sprintf("s3://%s/%s?endpoint=%s&path_style=true", bucket, prefix, url.QueryEscape(endpoint)))
	if err != nil {
		t.Fatal(err)
	}
	store, err := s3.Open(t.Context(), location)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second) // t.Context() is over
		defer cancel()
		out, err := client.ListMultipartUploads(ctx, &awss3.ListMultipartUploadsInput{Bucket: &bucket})
		var none smithy.APIError
		if errors.As(err, &none) && none.ErrorCode() == "NoSuchUpload" { // how gofakes3 says that there never was one
			return
		}
		if err != nil {
			t.Errorf("look for open uploads: %v", err)
			return
		}
		for _, upload := range out.Uploads {
			t.Errorf("the upload of %q was left open", aws.ToString(upload.Key))
		}
	})
	return store
}
