"""Push through FCM."""
